"""In front of the real package on the path of processes whose pictures no test looks at: drawing takes seconds."""

raise ImportError("the tests draw no pictures here")
