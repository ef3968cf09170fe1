"""Faults of the training wing and of planning."""

from typing import Final

from tests.planted.fault import Fault

TRAINING_FAULTS: Final = (
    Fault(
        "sum-order",
        "a reduction adds a rank's parts in another order",
        "training/collectives/ordered_sums.py",
        "for one in own:\n",
        "for one in reversed(own):\n",
        (
            "training/collectives/test_ordered_sums.py",
            "training/collectives",
        ),
    ),
    Fault(
        "lost-update",
        "the update of a fetched record does not count as a change, and is lost on disk",
        "training/stream/link/fetches.py",
        "loan.release(dirty=changed)\n        return transfer",
        "loan.release()\n        return transfer",
        (
            "training/stream/test_store_link.py",
            "training/stream/test_stream_matrix.py",
            "training/stream",
        ),
    ),
    Fault(
        "stale-gradients",
        "gradients of zero that get bytes of the store find what an earlier record has left there",
        "training/stream/link/pushes.py",
        "loan.tensor(name, Part.GRADIENTS).zero_()",
        "loan.tensor(name, Part.GRADIENTS)",
        (
            "training/stream/test_zero_gradients.py",
            "training/stream",
        ),
    ),
    Fault(
        "prefetch-window",
        "fetches run one layer less ahead than was asked for",
        "training/stream/schedule.py",
        "min(index + 1 + ahead, len(calls))",
        "min(index + ahead, len(calls))",
        (
            "training/stream/test_schedule.py",
            "training/stream",
        ),
    ),
    Fault(
        "missed-sync",
        "a commit is published before its bytes are durable",
        "training/store/transfers.py",
        "self._file.sync()\n                self._commits.publish(pending, versions)",
        "self._commits.publish(pending, versions)\n                self._file.sync()",
        (
            "training/store/test_commits.py",
            "training/store",
            "training/kill",
            "faults",
        ),
    ),
    Fault(
        "clip-before-unscale",
        "the norm is taken of gradients that the loss scale still multiplies",
        "training/step.py",
        "        if self._is_scaled:\n"
        "            self._unscale(gradients.values())\n"
        "        if self._is_clipped:\n"
        "            norms = tensor_norms(gradients.values(), dtype=self._norm_dtype)\n"
        "            self.norms.update(zip(gradients, norms, strict=True))",
        "        if self._is_clipped:\n"
        "            norms = tensor_norms(gradients.values(), dtype=self._norm_dtype)\n"
        "            self.norms.update(zip(gradients, norms, strict=True))\n"
        "        if self._is_scaled:\n"
        "            self._unscale(gradients.values())",
        (
            "training/step",
            "training/session/test_exact_training.py",
            "training/session",
        ),
    ),
    Fault(
        "tied-norm",
        "the norm of a tied weight's gradient counts what its two uses have in common once",
        "training/noise_scale/per_example.py",
        "2 * (rows_BTD * gradient_BTD.float())",
        "(rows_BTD * gradient_BTD.float())",
        (
            "training/noise_scale/test_per_example_norms.py",
            "training/noise_scale",
        ),
    ),
    Fault(
        "roll-back",
        "a buffer with a change that was undone counts as what the last commit has",
        "training/store/lending.py",
        "self._ring.drop(part)\n\n    def _settle",
        "self._ring.keep_idle(part)\n\n    def _settle",
        (
            "training/store/test_rolling_back.py",
            "training/store",
            "training/session/test_speculation.py",
        ),
    ),
    Fault(
        "resumed-average",
        "a resumed run has forgotten how far the averages of its weights are",
        "training/stream/link/updates.py",
        "self.steps_applied, _of_wholes(self.num_updates), _of_wholes(self.num_averaged)",
        "self.steps_applied, _of_wholes(self.num_updates)",
        (
            "training/session/test_averages.py",
            "training/session/test_resumed_training.py",
            "training/session",
        ),
    ),
    Fault(
        "resumed-scale",
        "a resumed run counts the good steps before the next loss scale from zero",
        "training/step.py",
        'self._num_good_steps.fill_(int(state["num_good_steps"]))',
        "self._num_good_steps.zero_()",
        (
            "training/step",
            "training/session/test_resumed_training.py",
            "training/session",
        ),
    ),
    Fault(
        "data-position",
        "a batch schedule repeats or skips samples where the size changes",
        "training/data/dataset.py",
        "sum(size * steps for size, steps in self.spans(step))",
        "self.at(step) * step",
        (
            "training/data/test_batch_sizes.py",
            "training/data",
        ),
    ),
    Fault(
        "recomputed-dropout",
        "a recomputed layer leaves the generator where its own draws have",
        "training/stream/execute/activations.py",
        "                stack.callback(self._random_now().restore)\n",
        "",
        (
            "training/stream/test_recomputation.py",
            "training/stream",
        ),
    ),
    Fault(
        "causal-mask",
        "a token of a text that goes on sees the token behind it",
        "training/models/reference_gpt.py",
        "sees.tril(num_keys - num_queries)",
        "sees.tril(num_keys - num_queries + 1)",
        (
            "training/models/test_reference_gpt.py",
            "training/models/test_key_values.py",
            "training/models",
            "training/session/test_generated_texts.py",
        ),
    ),
    Fault(
        "mask-not-written",
        "weights move to the places of a new mask, and the old mask stays",
        "training/methods/mask_updates.py",
        "packed.copy_(room.packed(after))",
        "room.packed(after)",
        (
            "training/session/test_sparse_runs.py",
            "training/sparsity",
        ),
    ),
    Fault(
        "pruned-gradient",
        "room behind the kept weights gets a gradient",
        "training/sparsity/linear.py",
        "totals.new_zeros(capacity - num_kept)",
        "totals.new_ones(capacity - num_kept)",
        (
            "training/sparsity/test_skipping_linear.py",
            "training/sparsity",
        ),
    ),
    Fault(
        "mean-of-means",
        "micro-batches of fewer targets weigh as much as the others",
        "training/session/trainer.py",
        "return report.num_targets / self._num_targets",
        "return 1 / self._num_micro_batches",
        (
            "training/session/test_step_root.py",
            "training/session",
        ),
    ),
    Fault(
        "tied-once",
        "the gradient of a weight that two stages use is that of one use",
        "training/stream/stages/stage_gradients.py",
        "            whole.add_(own)\n",
        "",
        (
            "training/stream/stages",
            "training/session/test_pipelined_runs.py",
            "training/session",
        ),
    ),
    Fault(
        "rank-order",
        "the losses of systems stand in the order of falling ranks",
        "training/session/systems.py",
        "for block, found in zip(blocks, tables, strict=True)",
        "for block, found in zip(blocks, reversed(tables), strict=True)",
        (
            "training/session/test_systems.py",
            "training/session/test_batch_schedules.py",
            "training/session",
        ),
    ),
    Fault(
        "last-sample",
        "an evaluation leaves out the last sample",
        "training/data/dataset.py",
        "min(start + step, self.num_samples)",
        "min(start + step, self.num_samples - 1)",
        (
            "training/data/test_token_dataset.py",
            "training/data",
        ),
    ),
    Fault(
        "no-timeout",
        "who waits for a rank that says nothing waits for ever",
        "training/collectives/group.py",
        "self._work.wait(timedelta(seconds=self._waiting.timeout_seconds))",
        "self._work.wait()",
        (
            "training/collectives/test_lost_ranks.py",
            "training/collectives",
            "faults",
        ),
    ),
    Fault(
        "plan-without-gradients",
        "the predicted host memory leaves out the gradients that the store keeps",
        "training/stream/plan/report.py",
        "(KEPT_PARTS if plan.mode is Mode.RESIDENT else Part)",
        "KEPT_PARTS",
        (
            "training/stream/test_host_bytes.py",
            "training/stream",
        ),
    ),
    Fault(
        "attention-flops",
        "the backward of fused attention counts without the scores that it makes again",
        "training/methods/fused_kernels.py",
        "3 * query[-1] + 2 * gradient[-1]",
        "2 * query[-1] + 2 * gradient[-1]",
        (
            "cli/test_plans_count_fused_attention.py",
            "training/stream",
        ),
    ),
    Fault(
        "law-weights",
        "a fit of losses steps as if no run were an outlier",
        "planning/laws/robust_fit.py",
        "slopes / np.maximum(np.abs(errors), delta)[..., None]",
        "slopes / delta",
        ("planning/laws",),
    ),
    Fault(
        "attention-scale",
        "muP scales attention by the root of a head's size",
        "training/parametrization/scalars.py",
        "self.base_scale * self.base_size / size",
        "self.base_scale * (self.base_size / size) ** 0.5",
        (
            "training/parametrization/test_mup_runs.py",
            "training/parametrization",
        ),
    ),
    Fault(
        "noise-bias",
        "the noise of gradients is taken as if the large batch had none",
        "training/noise_scale/estimators.py",
        "(small - big) / (1 / num_small - 1 / num_big)",
        "(small - big) / (1 / num_small)",
        (
            "training/noise_scale/test_noise_estimators.py",
            "training/noise_scale",
        ),
    ),
    Fault(
        "undone-forgotten",
        "a resumed run forgets which of its steps were undone",
        "training/session/run.py",
        "        self.trainer.speculation.restore(state.undone)\n",
        "",
        (
            "training/session/test_speculation.py",
            "training/session",
        ),
    ),
    Fault(
        "seen-in-training",
        "an evaluation hides the tokens that training does",
        "training/data/dataset.py",
        "(starts[mine], lengths[mine]), -1 - mine)",
        "(starts[mine], lengths[mine]), mine)",
        (
            "training/data/test_masking.py",
            "training/data",
        ),
    ),
    Fault(
        "best-forgotten",
        "a resumed run has forgotten the loss of its best checkpoint",
        "training/session/held_out_losses.py",
        "last_step = step_named(best) - 1",
        "last_step = step_named(best)",
        (
            "training/session/test_early_stopping.py",
            "training/session",
        ),
    ),
    Fault(
        "snake",
        "all bands begin at one side, so that a band's last layer is far from the next",
        "planning/placement/bands.py",
        "at = x if band % 2 == 0 else columns - x - width",
        "at = x",
        (
            "planning/placement/test_bands_by_brute_force.py",
            "planning/placement",
        ),
    ),
    Fault(
        "mix-period",
        "the shares of a mix are kept to another part than a thousandth",
        "training/data/mix.py",
        "PERIOD: Final = 1000",
        "PERIOD: Final = 999",
        ("training/data/test_mixes.py",),
    ),
    Fault(
        "scale-backward",
        "the backward of sparse attention forgets the scale that its caller gave",
        "training/models/attention_in_parts.py",
        "dropout_p=0.0, is_causal=part.is_causal, scale=scale)",
        "dropout_p=0.0, is_causal=part.is_causal)",
        ("training/models/test_sparse_attention.py",),
    ),
    Fault(
        "late-average",
        "the average of weights is the weight itself for a step too long",
        "training/store/update_rules/update_pass.py",
        "        if number == 0:\n",
        "        if number <= 1:\n",
        (
            "training/store/update_rules/test_update_pass.py",
            "training/store",
        ),
    ),
    Fault(
        "still-training",
        "an evaluation runs the model as training does",
        "training/session/opened_model.py",
        "    opened.model.eval()\n",
        "    opened.model.train()\n",
        (
            "training/session/test_evaluation_cap.py",
            "training/session",
        ),
    ),
    Fault(
        "grown-again",
        "a step that is clipped counts as two good ones of the loss scale",
        "training/step.py",
        "        settled()\n        self.apply(made.coefficient)",
        "        if self.scaler and made.coefficient not in (None, 1.0):\n"
        "            self.scaler.end_step(has_overflowed=False)\n"
        "        settled()\n        self.apply(made.coefficient)",
        ("training/step/test_step.py",),
    ),
    Fault(
        "step-of-rows",
        "the first steps count as shorter ones, of a micro-batch each",
        "training/session/run.py",
        "note(metrics.seconds, run.config.batch.sizes.at(step))",
        "note(metrics.seconds, run.config.batch.samples_of_piece)",
        ("training/session/test_first_steps.py",),
    ),
    Fault(
        "coarse-forgotten",
        "a refusal names no smaller budget of larger layers",
        "training/stream/plan/search.py",
        "        smallest = min(smallest, found, key=lambda one: one.peak_bytes)\n",
        "",
        ("training/stream/test_smallest_budget.py",),
    ),
    Fault(
        "two-clocks",
        "operators are timed by the wall, and the step that they are of by its thread",
        "training/stream/plan/machine.py",
        "operators_seconds(calls.forward, CPU, clock=clock)",
        "operators_seconds(calls.forward, CPU)",
        ("training/stream/test_streaming_time.py",),
    ),
    Fault(
        "left-again",
        "a rank says again and again that its backward has left a module of experts",
        "training/stream/replicas/expert_link.py",
        "            self._entered.discard(path)\n",
        "",
        ("training/stream/test_expert_link.py",),
    ),
)
