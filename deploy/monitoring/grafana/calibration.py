"""Calibration: what is learnt from, and what the student becomes; the paper's curves as bands."""

from deploy.monitoring.grafana.panel import BAND, PROGRESS, RUN, Panel, Row, band

CALIBRATION = (
    Row(
        "What is learnt from",
        (
            Panel(
                "Retained discrepancy",
                "sum|A_Cal| / sum|A_OPD|. The paper: 0.65 falling to 0.52 with eval and λ = 5 (the band is 0.05 to "
                "either side); 0.7 with inst is hardly calibrated, 0.2 with sol is a collapse.",
                {"{{run}}": f"calopd_learner_retained_discrepancy_ratio{{{RUN}}}", **band(0.60, 0.70, -0.13)},
                unit="percentunit", width=12, band=BAND, runbook="Signal collapse",
            ),
            Panel(
                "Zero-advantage tokens",
                "Share of tokens that teach nothing. The paper: 0.27 rising to 0.34 with eval and λ = 5.",
                {"{{run}}": f"calopd_learner_zero_advantage_ratio{{{RUN}}}", **band(0.22, 0.32, 0.07)},
                unit="percentunit", width=12, band=BAND, runbook="Signal collapse",
            ),
            Panel(
                "Region width",
                "Mean of U - L in nats: how much of a discrepancy the teacher's own wobble explains.",
                {"{{run}}": f"calopd_learner_region_width_nats{{{RUN}}}"}, runbook="No calibration",
            ),
            Panel(
                "Self-deviation of the probes",
                "Mean of lT(c) - lT under c+ and c-, in nats.",
                {"{{run}} {{probe}}": f"calopd_learner_self_deviation_nats{{{RUN}}}"}, runbook="No calibration",
            ),
            Panel(
                "Clamped and sign-flipped",
                "Share of tokens whose advantage met the bound, and of those whose sign calibration changed (none "
                "under Cal-OPD).",
                {
                    "{{run}} clamped": f"calopd_learner_clamped_ratio{{{RUN}}}",
                    "{{run}} sign-flipped": f"calopd_learner_sign_flip_ratio{{{RUN}}}",
                },
                unit="percentunit",
            ),
        ),
    ),
    Row(
        "What the student becomes",
        (
            Panel(
                "Accuracy",
                "Share of right answers among the rollouts, and on the held-out problems before and after.",
                {
                    "{{run}} rollouts": f"calopd_learner_rollout_accuracy_ratio{{{RUN}}}",
                    "{{run}} held-out": f"calopd_learner_evaluation_accuracy_ratio{{{RUN}}}",
                },
                unit="percentunit",
            ),
            Panel(
                "Response length",
                "Tokens. The paper (4B -> 1.7B): OPD grows from 9.8 K to 11.8 K, Cal-OPD falls to 8.5 K and ends at "
                "9.3 K.",
                {
                    "{{run}} mean": f"calopd_learner_response_length_tokens{{{RUN}}}",
                    "{{run}} p95": f"calopd_learner_response_length_p95_tokens{{{RUN}}}",
                },
                thresholds=((None, "transparent"), (8_500, "green"), (9_800, "transparent")),
            ),
            Panel(
                "Cut at the limit",
                "Share of responses that reached rollout.max_tokens.",
                {"{{run}}": f"calopd_learner_truncated_ratio{{{RUN}}}"}, unit="percentunit",
            ),
            Panel(
                "Student entropy",
                "Nats, whole vocabulary. The paper: about 0.20 with OPD and inst, 0.36 with a collapsed signal (sol), "
                "Cal-OPD with eval between them.",
                {"{{run}}": f"calopd_learner_student_entropy_nats{{{RUN}}}"},
                thresholds=((None, "transparent"), (0.20, "green"), (0.36, "transparent")),
            ),
            Panel(
                "Top-16 token overlap",
                "|Top16_T & Top16_S| / 16. The paper: up to 0.693 with eval, 0.684 with inst.",
                {"{{run}}": f"calopd_learner_top16_token_overlap_ratio{{{RUN}}}"},
                unit="percentunit", thresholds=((None, "transparent"), (0.684, "green"), (0.70, "transparent")),
            ),
            Panel(
                "Top-16 mass overlap",
                "Sum over the common tokens of min(p_T, p_S). The paper: 0.886 with OPD and inst, 0.862 with sol.",
                {"{{run}}": f"calopd_learner_top16_mass_overlap_ratio{{{RUN}}}"},
                unit="percentunit", thresholds=((None, "transparent"), (0.862, "green"), (0.886, "transparent")),
            ),
        ),
    ),
    Row(
        "Is the optimization sound",
        (
            Panel(
                "Gradient norm", "Before clipping (at 1.0 by default).",
                {"{{run}}": f"calopd_learner_gradient_norm{{{RUN}}}"}, logarithmic=True, runbook="Gradient norm",
            ),
            Panel("Loss", "Of the last step.", {"{{run}}": f"calopd_learner_loss{{{RUN}}}"}),
            Panel("Learning rate", "Of the last step.", {"{{run}}": f"calopd_learner_learning_rate{{{RUN}}}"}),
            Panel(
                "Sampler against learner",
                "Mean |rollout - learner| log-probability in nats: 0.01 to 0.03 in bfloat16, 0.0001 in float32.",
                {"{{run}}": f"calopd_learner_logprob_mismatch_nats{{{RUN}}}"}, logarithmic=True, runbook="Mismatch",
            ),
            Panel(
                "Staleness", "Mean age of the trajectories in policy versions; 0 = strictly on-policy.",
                {"{{run}}": f"calopd_learner_staleness_versions{{{RUN}}}"}, runbook="Staleness",
            ),
            Panel(
                "Progress", "Optimizer steps done, of all.", {"{{run}}": PROGRESS}, unit="percentunit", kind="gauge",
            ),
        ),
    ),
)  # fmt: skip
