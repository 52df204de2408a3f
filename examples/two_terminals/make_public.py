"""Writes public.npz: 300 digits without their labels, which every device and the coordinator hold."""

import numpy as np
from sklearn.datasets import load_digits

np.savez("public.npz", public=load_digits().images[1000:1300].astype(np.uint8))
