//! What decides, once more with the relay's state in Redis.

use crate::tests::support::on_redis;

macro_rules! on_redis {
    ($($module:ident: $($test:ident),+;)+) => {
        $(mod $module {
            $(#[test]
            #[ignore = "needs redis-server"]
            fn $test() {
                super::on_redis(crate::tests::callbacks::$module::$test);
            })+
        })+
    };
}

on_redis! {
    strangers:
        strangers_pull_request_at_a_failed_commit_leaves_its_check_failed,
        strangers_run_that_leaves_out_the_failed_job_leaves_the_check_failed,
        strangers_run_that_passes_all_that_reports_does_not_stand_for_a_failure_that_never_did,
        jobs_of_a_push_get_check_runs_when_a_pull_request_is_opened_at_its_commit,
        strangers_run_that_has_passed_does_not_end_the_wait_for_an_open_one,
        stranger_who_opens_a_pull_request_at_a_commit_and_closes_it_changes_no_result,
        job_that_a_strangers_run_skips_stays_failed,
        job_of_a_strangers_cancelled_run_that_is_never_heard_of_again_changes_no_result,
        crowd_of_new_accounts_at_a_commit_does_not_hide_its_failure,
        stranger_who_opens_a_pull_request_again_and_closes_it_changes_no_result,
        pull_request_to_another_branch_is_waited_for_although_another_one_passes_meanwhile,
        draft_that_passed_does_not_pass_another_pull_request_at_its_commit,
        failure_that_a_stranger_repeats_and_then_leaves_out_stays,
        author_cannot_hide_a_failure_behind_many_drafts,
        author_cannot_hide_an_open_run_behind_many_drafts;
    branches:
        another_base_has_a_required_check_run_again,
        another_base_that_nobody_tests_is_no_success,
        pull_request_reopened_for_another_branch_that_nobody_tests_is_no_success,
        commit_pushed_again_for_another_branch_that_nobody_tests_is_no_success,
        required_check_that_ran_for_a_draft_runs_again_when_that_is_ready;
    verdicts:
        commit_that_was_never_tested_is_no_success_when_it_is_pushed_again,
        push_back_within_a_second_is_tested_in_whatever_order_its_webhooks_arrive,
        reports_from_a_renamed_default_branch_count_within_minutes,
        label_that_goes_counts_at_the_commit_that_its_pull_request_has_left,
        another_pull_request_without_the_label_does_not_skip_the_check_of_a_labelled_one,
        run_that_github_creates_late_is_waited_for,
        failed_late_run_counts_although_the_run_of_the_next_dispatch_is_not_there_yet,
        failed_run_counts_although_an_earlier_dispatch_could_have_started_it_too,
        failed_run_counts_if_the_earlier_dispatches_have_runs_of_their_own,
        failed_run_counts_although_the_relays_clock_is_ahead_of_githubs,
        failed_run_on_the_second_page_of_githubs_list_is_not_lost,
        list_of_runs_that_github_does_not_show_as_a_whole_is_not_read_for_weeks,
        list_without_a_run_that_has_reported_is_not_the_whole_list,
        failed_run_that_is_missing_in_a_later_list_still_counts,
        run_that_was_open_and_cannot_be_read_any_more_ends_the_verdict_with_the_reason,
        two_legs_of_one_name_cannot_hide_a_failure,
        job_of_two_workflow_files_of_one_name_shows_the_failure_of_the_older_run,
        job_that_never_ended_keeps_a_run_open_that_github_says_passed,
        conclusion_that_the_relay_does_not_know_is_no_success,
        run_of_skipped_jobs_alone_does_not_pass_a_blocking_check,
        backend_that_leaves_and_returns_to_l4_during_a_run_shows_its_result,
        backend_that_is_promoted_to_l4_gets_its_required_check_on_open_pull_requests,
        required_check_appears_although_a_replica_that_reads_the_allowlist_later_evaluates_it_first,
        backend_that_returns_to_l3_keeps_the_check_of_a_labelled_pull_request,
        change_of_case_in_the_allowlist_leaves_one_check_run,
        check_run_is_not_created_twice_if_the_case_changes_before_its_creation_is_confirmed,
        label_of_the_second_in_which_the_pull_request_was_opened_is_not_lost,
        pull_request_that_had_moved_on_when_its_webhook_came_shows_the_result_of_its_commit;
    overtaken:
        worker_whose_lease_ended_early_leaves_no_old_check_run_behind,
        update_of_a_worker_that_stopped_does_not_stay_although_it_arrives_last,
        check_run_is_not_created_while_a_worker_that_stopped_may_have_asked_for_it,
        check_run_that_two_workers_created_has_one_result,
        check_run_that_has_ended_is_opened_again_by_a_new_one_of_its_name,
        worker_whose_lease_has_ended_changes_no_check_run,
        worker_that_was_frozen_does_not_create_a_check_run_whose_label_has_gone,
        check_run_whose_creation_is_on_its_way_when_the_label_goes_is_ended,
        refused_rerun_is_seen_on_the_check_run_by_the_person_who_pressed_it,
        rerun_of_a_run_that_never_reports_reopens_the_check_and_ends_it,
        operator_who_looks_at_a_delivery_reads_why_it_waits;
    breaker:
        dead_lab_blocks_nobody_after_some_failures_and_returns_by_itself,
        failing_tests_never_open_the_breaker,
        one_authors_broken_pull_request_does_not_turn_off_the_checks_of_everybody,
        newcomers_whose_jobs_hang_do_not_turn_off_the_checks_of_everybody,
        runs_whose_reports_were_lost_while_the_relay_was_down_do_not_open_the_breaker,
        jobs_whose_end_was_lost_while_the_relay_was_down_do_not_open_the_breaker,
        while_the_breaker_is_open_a_failure_stays_and_rerun_is_the_probe;
    authority:
        runs_of_before_a_promotion_are_told_apart_and_answer_one_dispatch_each,
        unproven_success_does_not_pass_a_blocking_check,
        run_that_answers_one_dispatch_reports_for_no_other_one,
        unproven_newer_run_has_no_check_run,
        unproven_lost_or_labelled_job_has_no_check_run,
        unproven_end_of_a_proven_job_closes_its_check_run_without_success,
        proven_report_replaces_unproven_ones,
        passing_rerun_unblocks_the_merge,
        check_stays_open_until_the_slowest_run_ends,
        run_that_failed_on_github_is_not_a_success,
        foreign_check_run_of_the_same_name_is_ignored,
        reopened_pull_request_gets_the_verdict_of_its_new_run,
        verdict_waits_for_the_delivery_that_was_accepted_last_even_at_the_same_time,
        run_of_an_earlier_delivery_is_followed_while_the_verdict_waits_for_the_newest,
        rerun_of_a_dispatch_that_was_answered_meanwhile_sends_nothing,
        report_for_a_dispatch_that_is_given_up_and_then_sent_after_all_is_shown,
        rerun_on_a_silent_backend_redispatches,
        rerun_on_a_dead_or_unreachable_dispatch_redispatches,
        report_before_the_dispatch_response_is_shown_after_it,
        report_for_a_dispatch_that_was_given_up_is_shown_after_its_redelivery,
        demotion_closes_check_runs_without_further_requests,
        failed_check_of_a_backend_that_is_demoted_blocks_nobody_any_more,
        unlabelled_dispatches_at_l3_cost_no_call_to_github,
        merge_group_is_dispatched_to_required_backends_with_checks_on_its_head,
        landed_pull_request_is_dispatched_once_and_expects_no_report,
        dead_dispatch_of_an_older_head_is_never_redelivered,
        often_reopened_pull_request_has_a_bounded_record,
        job_lost_in_an_older_run_does_not_replace_a_newer_result_after_the_head_has_changed;
}
