// The questions that people bring to the HUD, each with the links that lead from the first page to its answer, and
// words of the answer. `main` narrows a link to the page's content; without it, it is in the navigation.
export const QUESTIONS = [
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
export const START = "/crcr";
