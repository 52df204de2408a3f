"""The list of planted bugs: mistakes that somebody could make, each with the test that must notice it.

A change of code that a bug is planted in moves the bug along: `old` is a text that occurs once in the file.
"""

from __future__ import annotations

from planting import PlantedBug

BUGS = (
    # -- draws: which samples, seeds and weights ----------------------------------------------------------------------
    PlantedBug(
        "all devices draw the same batches",
        "edge_sdk/methods/job.py",
        "[self.spec.seed, self.round, 0, self.number]",
        "[self.spec.seed, self.round, 0, 0]",
        "tests/device/test_draws.py::test_batches_of_each_device_and_round",
    ),
    PlantedBug(
        "every round has the same batches",
        "edge_sdk/methods/job.py",
        "[self.spec.seed, self.round, 0, self.number]",
        "[self.spec.seed, 0, 0, self.number]",
        "tests/device/test_draws.py::test_batches_of_each_device_and_round",
    ),
    PlantedBug(
        "every exchange of a round has batches of its own",
        "edge_sdk/methods/job.py",
        "[self.spec.seed, self.round, 0, self.number]",
        "[self.spec.seed, self.round, self.exchange, self.number]",
        "tests/device/test_draws.py::test_batches_of_each_device_and_round",
    ),
    PlantedBug(
        "a run's devices draw the same batches, seen by a twin",
        "edge_sdk/methods/job.py",
        "[self.spec.seed, self.round, 0, self.number]",
        "[self.spec.seed, self.round, 0, 0]",
        "tests/methods/test_naive_twins.py::test_fedssa",
    ),
    PlantedBug(
        "all devices have the same seeds of steps",
        "edge_sdk/device/handlers.py",
        "[job.spec.seed, job.round, job.exchange, job.number, step]",
        "[job.spec.seed, job.round, job.exchange, 0, step]",
        "tests/device/test_draws.py::test_the_seed_of_each_step",
    ),
    PlantedBug(
        "every round has the same seeds of steps",
        "edge_sdk/device/handlers.py",
        "[job.spec.seed, job.round, job.exchange, job.number, step]",
        "[job.spec.seed, 0, job.exchange, job.number, step]",
        "tests/device/test_draws.py::test_the_seed_of_each_step",
    ),
    PlantedBug(
        "devices that begin with their own weights have the same",
        "edge_sim/fleet/fleet.py",
        '0 if config.federation.start == "equal" else number',
        "0",
        "tests/device/test_draws.py::test_devices_begin_equal_unless_they_are_to_begin_with_their_own",
    ),
    PlantedBug(
        "all devices draw the same noise",
        "edge_sim/fleet/fleet.py",
        'f"noise/{self.seed}/{self.number}"',
        'f"noise/{self.seed}"',
        "tests/device/test_draws.py::test_all_devices_have_secrets_of_their_own",
    ),
    PlantedBug(
        "every round has the same public batch",
        "edge_sdk/protocol/public_batch.py",
        'f"public/{seed}/{round_}/{iteration}"',
        'f"public/{seed}/0/{iteration}"',
        "tests/protocol/test_public.py::test_batches_never_change",
    ),
    # -- figures ------------------------------------------------------------------------------------------------------
    PlantedBug(
        "the personal model's metrics are booked a round early",
        "edge_sdk/methods/base.py",
        "yield Evaluate(job.round + 1)",
        "yield Evaluate(job.round)",
        "tests/record/test_booking.py::test_each_round_s_accuracy_is_that_of_the_model_after_it",
    ),
    PlantedBug(
        "the global model's metrics are booked a round early",
        "edge_sdk/methods/base.py",
        "yield Evaluate(device.job.round, model=model,",
        "yield Evaluate(max(1, device.job.round - 1), model=model,",
        "tests/record/test_booking.py::test_each_round_s_global_accuracy_is_that_of_the_mean_after_it",
    ),
    PlantedBug(
        "inference effort is counted twice",
        "edge_sdk/device/workbench.py",
        "        self.meter.inferred(self.model.spec, samples)\n",
        "        self.meter.inferred(self.model.spec, samples)\n        self.meter.inferred(self.model.spec, samples)\n",
        "tests/record/test_booking.py::test_joules_seconds_and_bytes_of_two_exchanges_by_hand",
    ),
    PlantedBug(
        "a training step costs two forward passes",
        "edge_sdk/device/meter.py",
        '{"all": 3, "body": 3, "head": 1}',
        '{"all": 2, "body": 3, "head": 1}',
        "tests/record/test_booking.py::test_joules_seconds_and_bytes_of_two_exchanges_by_hand",
    ),
    PlantedBug(
        "the radio draws nothing",
        "edge_sim/fleet/hardware.py",
        " + self.link.radio_w * self._books.air_s",
        "",
        "tests/record/test_booking.py::test_joules_seconds_and_bytes_of_two_exchanges_by_hand",
    ),
    PlantedBug(
        "receipts are not counted",
        "coordinator/serving/sender.py",
        "        self._sent(device, len(frame))\n",
        "        if kind is not Receipt:\n            self._sent(device, len(frame))\n",
        "tests/record/test_booking.py::test_joules_seconds_and_bytes_of_two_exchanges_by_hand",
    ),
    PlantedBug(
        "bytes of duplicates are not counted",
        "coordinator/serving/server.py",
        "        self.record.bytes_up[upload.device] += len(incoming.frame)\n"
        "        if self.ledger.has(place, upload.device):\n",
        "        if not self.ledger.has(place, upload.device):\n"
        "            self.record.bytes_up[upload.device] += len(incoming.frame)\n"
        "        if self.ledger.has(place, upload.device):\n",
        "tests/record/test_booking.py::test_bytes_of_duplicates_count",
    ),
    PlantedBug(
        "uploads accepted before a restart are not counted",
        "coordinator/serving/aggregation.py",
        '            self.record.updates["accepted"] += 1\n',
        "",
        "tests/record/test_booking.py::test_a_restart_counts_every_accepted_upload_once",
    ),
    PlantedBug(
        "a device that was silent once is never asked again",
        "coordinator/rounds/machine.py",
        "away=state.away - {device}) if device in state.away else state",
        "away=state.away)",
        "tests/rounds/test_rounds_cases.py::test_any_sign_of_life_brings_a_silent_device_back",
        "R14",
    ),
    # -- influence ----------------------------------------------------------------------------------------------------
    PlantedBug(
        "a device weighs what its upload says, not at most what it declared",
        "coordinator/serving/upload_screen.py",
        "min(told, self._registry.samples[device] or 1, told if most is None else most)",
        "told",
        "tests/serving/test_counts.py::test_no_device_weighs_more_than_it_declared",
        "S11",
    ),
    PlantedBug(
        "the weight of a device's model has no bound",
        "edge_sdk/protocol/knowledge.py",
        "if self.count > (expect.samples or self.count):",
        "if self.count < 0:",
        "tests/protocol/test_knowledge.py::test_the_weight_of_a_model_is_bounded_by_what_was_declared",
        "S11",
    ),
    PlantedBug(
        "the counts of class rows have no bound",
        "edge_sdk/protocol/knowledge.py",
        "if expect.samples and (total := sum(samples)) > max(expect.samples, rows):",
        "if (total := sum(samples)) < 0:",
        "tests/protocol/test_knowledge.py::test_counts_are_bounded_by_what_was_declared",
        "S11",
    ),
    # -- restarts -----------------------------------------------------------------------------------------------------
    PlantedBug(
        "after a restart a device sends what has its receipt, and not what has none",
        "edge_sdk/device/recovery.py",
        "not last.receipted",
        "last.receipted",
        "tests/device/test_recovery.py::test_after_a_restart_only_an_upload_without_a_receipt_is_pending",
        "R3",
    ),
    PlantedBug(
        "a round's start is saved anew in each exchange",
        "edge_sdk/device/exchange.py",
        "assign.round > saved",
        "assign.round >= saved",
        "tests/device/test_recovery.py::test_a_round_s_start_is_saved_once_a_round",
        "R3",
    ),
    PlantedBug(
        "commits are not synced",
        "edge_sdk/durable.py",
        "PRAGMA synchronous=FULL",
        "PRAGMA synchronous=NORMAL",
        "tests/durable/test_database.py::test_a_commit_is_a_sync",
        "R1",
    ),
    PlantedBug(
        "a broker that comes back is no reason to send an upload again",
        "edge_sdk/device/session.py",
        "        return _retry_upload(state, event.now_s), (SayHello(), SendUpload(state.exchange_id))\n"
        "    if state.phase is SessionPhase.FETCHING:",
        "        return _retry_upload(state, event.now_s), (SayHello(),)\n    if state.phase is SessionPhase.FETCHING:",
        "tests/device/test_session_cases.py::test_nothing_is_due_while_the_link_is_down_and_all_is_said_when_it_is_back",
        "R2",
    ),
    PlantedBug(
        "an upload is receipted before it is durable",
        "coordinator/rounds/machine.py",
        "    return state, (Persist(event.device, event.place, event.upload),)\n",
        '    receipt = SendReceipt(event.device, event.place, "accepted", "")\n'
        "    return state, (receipt, Persist(event.device, event.place, event.upload))\n",
        "tests/rounds/test_rounds_chaos.py::test_promises_hold_whatever_happens",
        "R1",
    ),
    PlantedBug(
        "after a restart everybody is asked again",
        "coordinator/rounds/machine.py",
        "    return replace(state, folded=folded)\n",
        "    return state\n",
        "tests/rounds/test_rounds_cases.py::test_after_a_restart_only_those_without_a_durable_upload_are_invited",
        "R7",
    ),
    # -- what arrives -------------------------------------------------------------------------------------------------
    PlantedBug(
        "an upload counts twice",
        "coordinator/rounds/machine.py",
        "    if event.place != state.place or event.device in state.folded:\n"
        "        return state, (_answer(state, event),)\n"
        "    one = event.device\n",
        "    if event.place != state.place:\n        return state, (_answer(state, event),)\n    one = event.device\n",
        "tests/rounds/test_rounds_cases.py::test_two_copies_of_one_upload_count_once",
        "R5",
    ),
    PlantedBug(
        "sums follow the order of arrival",
        "edge_sdk/reductions/bag.py",
        "for number in sorted(self.uploads))",
        "for number in self.uploads)",
        "tests/reductions/test_bag.py::test_a_bag_is_read_in_number_order",
        "R5",
    ),
    PlantedBug(
        "an upload for a closed round counts",
        "coordinator/rounds/machine.py",
        "    if event.place != state.place or event.device in state.folded:\n"
        "        return state, (_answer(state, event),)\n"
        "    if event.device not in state.invited:\n",
        "    if event.device in state.folded:\n"
        "        return state, (_answer(state, event),)\n"
        "    if event.device not in state.invited:\n",
        "tests/rounds/test_rounds_cases.py::test_the_verdicts",
        "R9",
    ),
    PlantedBug(
        "a device obeys an Assign whose closing flag contradicts its round",
        "edge_sdk/device/membership.py",
        "assign.closing != (assign.round == rounds) or ",
        "",
        "tests/device/test_recovery.py::test_an_assign_whose_closing_flag_contradicts_its_place_changes_nothing",
        "S8",
    ),
    PlantedBug(
        "an older Assign begins an exchange again",
        "edge_sdk/device/session.py",
        "    if event.exchange_id < state.exchange_id:\n        return state, ()\n    if event.exchange_id == state",
        "    if event.exchange_id == state",
        "tests/device/test_session_cases.py::test_an_older_assign_never_starts_work",
        "S8",
    ),
    PlantedBug(
        "uploads are not checked against what the exchange asks for",
        "coordinator/serving/checks.py",
        "        check_roles(upload.knowledge, slots, expect)\n",
        "",
        "tests/federation/test_rogue.py::test_a_wrong_shape",
        "S9",
    ),
    PlantedBug(
        "a device may speak for another one",
        "coordinator/serving/checks.py",
        '    if getattr(message, "device", None) != sender:\n',
        '    if getattr(message, "device", None) is None:\n',
        "tests/federation/test_rogue.py::test_speaking_for_somebody_else",
        "S4",
    ),
    PlantedBug(
        "the closing exchange may have any number",
        "edge_sdk/device/membership.py",
        " or (assign.closing and assign.exchange):",
        ":",
        "tests/device/test_recovery.py::test_an_assign_whose_closing_flag_contradicts_its_place_changes_nothing",
        "S8",
    ),
    PlantedBug(
        "a frame's checksum is not looked at",
        "edge_sdk/protocol/codec.py",
        "    if checksum != _checksum(",
        "    if False and checksum != _checksum(",
        "tests/protocol/test_codec.py::test_every_byte_of_a_frame_is_protected",
        "S1",
    ),
    PlantedBug(
        "a frame that breaks the link is tried for ever",
        "edge_sdk/transport/mqtt/hidden_limits.py",
        "            return message is not None and self._disconnects >= _DISCONNECTS\n",
        "            return False\n",
        "tests/transport/test_mqtt_parts.py::test_a_frame_is_dropped_after_three_disconnects_in_a_row",
        "R13",
    ),
    # -- identity, at rest, privacy ------------------------------------------------------------------------------------
    PlantedBug(
        "a device's signature is not looked at",
        "coordinator/serving/signatures.py",
        "return self._genuine(public, signed_text(Role.DEVICE, signed), signature)",
        "return True",
        "tests/identity/test_hostile.py::test_tampered_frames_change_nothing",
        "S4",
    ),
    PlantedBug(
        "every frame of a start is encrypted with the same nonce",
        "edge_sdk/identity/sealing.py",
        "bytes(4) + stamp.sequence.to_bytes(8",
        "bytes(4) + bytes(0 * stamp.sequence + 8) or int(0).to_bytes(8",
        "tests/identity/test_sealing.py::test_a_message_that_is_sent_twice_is_encrypted_anew",
        "S6",
    ),
    PlantedBug(
        "a row's digest is not looked at",
        "edge_sdk/at_rest/digests.py",
        "        if connection.execute(query).fetchone():\n            return table\n",
        "        connection.execute(query)\n",
        "tests/durable/test_damage.py::test_damage_is_told_or_changes_nothing",
        "R18",
    ),
    PlantedBug(
        "a privacy budget has no limit",
        "edge_sdk/device/budget.py",
        "if needed > limit * (1 + _ROUNDING):",
        "if needed < 0:",
        "tests/privacy/test_budget.py::test_more_than_the_budget_is_refused_before_anything_is_drawn",
        "V4",
    ),
    PlantedBug(
        "sums leave before they are in the budget's ledger",
        "edge_sdk/device/budget.py",
        '            self._db.execute("INSERT INTO releases VALUES (?, ?, ?, ?)", row)\n',
        "            del row\n",
        "tests/privacy/test_budget.py::test_the_same_data_gets_the_same_bytes_and_costs_once",
        "V4",
    ),
)
