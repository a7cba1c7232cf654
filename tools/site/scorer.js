// The order of search results: an operator's page comes before pages that mention it, and tables
// of measurements come last among pages of the same score. This file replaces Sphinx's settings;
// the numbers below `score` are Sphinx's own.
const TABLES = [
  "docs/accuracy",
  "docs/benchmarks",
  "docs/benchmark-results",
  "docs/mutation",
  "docs/mutation-results",
];

var Scorer = {
  score: ([page, , , , score]) => {
    if (page.startsWith("docs/operators/")) return 2 * score;
    return TABLES.includes(page) ? score / 2 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
