// The questions that people bring to the HUD, each with the links that lead from the first page to its answer, and
// words of the answer. `main` narrows a link to the page's content; without it, it is in the navigation.
export const QUESTIONS = [
  {
    question: "1. Which open pull requests are blocked now, by which backend, whose fault, since when?",
    site: "full",
    clicks: [],
    answer: [/#\d+ .+ is blocked by torch-aurora, since /, /infrastructure|this change|broken before|backend|flaky|undecided/],
  },
  {
    question: "2. Is the branch red, since which commit, whose?",
    site: "full",
    clicks: [],
    answer: [/is red on main since (before )?[0-9a-f]{10} .+ by /],
  },
  {
    question: "3. Which backends fail their level, by which criterion?",
    site: "full",
    clicks: [{ name: "Backends" }],
    answer: [/meets its level|fails its level/, /of \d+ for the next level/],
  },
  {
    question: "4. Is the relay itself well?",
    site: "full",
    clicks: [],
    answer: [/No dispatch was lost|never started a run|were given up/, /In the last 24 hours: \d+ dispatches/],
  },
  {
    question: "8. What happened to a commit?",
    site: "full",
    clicks: [{ main: "a[href^='/commit/']" }],
    answer: [/Out-of-tree backends/, /In-tree jobs \d+ failed, \d+ passed/, /Its place on main|Pull request #\d+/],
  },
  {
    question: "9. What did the older heads of this pull request get?",
    site: "full",
    clicks: [{ name: "Pull requests" }, { main: "tbody a[href^='/pr/']" }],
    answer: [/Heads of this pull request/],
  },
  {
    question: "11. What changed at this backend in the last day?",
    site: "full",
    clicks: [{ name: "Backends" }, { main: "tbody a:has-text('last day')" }],
    answer: [/Pull requests by job/, /CI job pass/],
  },
  {
    question: "12. Which dispatches were lost or withheld?",
    site: "full",
    clicks: [],
    answer: [/No dispatch was lost|was not told of|never started a run for/],
  },
  {
    question: "13. How near is my backend to the next level?",
    site: "full",
    clicks: [{ name: "Backends" }],
    answer: [/\d+ of \d+ for the next level/],
  },
  {
    question: "14. What is quarantined and when does it end?",
    site: "full",
    clicks: [{ name: "Tests" }, { main: "a:has-text('Quarantine')" }],
    answer: [/20\d\d-\d\d-\d\d/],
  },
  {
    question: "15. What do I do next (re-run, ask, revert), with the link?",
    site: "full",
    clicks: [{ main: "#blocked ~ ul a, section:has(#blocked) li a[href^='/pr/']" }],
    answer: [/Next: /, /Re-run it/, /in a comment/],
  },
  {
    question: "5. Why did this job fail, in one line, and is the line new?",
    site: "full",
    clicks: [{ name: "Failures" }, { main: "tbody tr:first-child td.message a" }],
    answer: [/\d+ % certain/, /Failed in step|the last green run/, /commit [0-9a-f]{7}/],
  },
  {
    question: "6. Did this test fail before, where, first at which commit, is it flaky, who owns it, is it quarantined?",
    site: "full",
    clicks: [{ name: "Tests" }, { main: "tbody a:has-text('test_seed_per_device')" }],
    answer: [/Passes|Fails since/, /Flaky/, /\d+\/\d+ · \d+–\d+ %/, /@grace-example/, /Quarantined by/, /ends on 20/],
  },
  {
    question: "7. Which tests are the worst this week?",
    site: "full",
    clicks: [{ name: "Tests" }],
    answer: [/test_seed_per_device/, /\d % \d+ of \d+|\d %/, /Owner/],
  },
  {
    question: "10. How long do authors wait (time to signal), and where is the queue?",
    site: "full",
    clicks: [{ name: "Trends" }],
    answer: [/Longest time to signal/, /Longest queue/, /P95 on linux\.8xlarge\.gpu/],
  },
];

// The first page of a walk.
export const START = "/";
