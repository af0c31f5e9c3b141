// How the site's search ranks what it finds, as Sphinx does it, but for one thing: the pages that answer users' questions
// come before those about the inside of partq. Sphinx puts this into its own script (html_search_scorer).
var Scorer = {
  score: ([page, title, anchor, description, score]) =>
    /^(CHANGELOG|CONTRIBUTING|docs\/(decisions\/|architecture|conformance|benchmarks|dependencies|reliability|spark-traps))/.test(page)
      ? score / 10
      : /^docs\/(recipes|troubleshooting)$/.test(page) ? score * 1.5 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
