"use strict";
// One comparison in one file, as `rldbg compare --html` writes it: there are no other views to link to.
R.isAlone = true;
R.view = {};
R.fill(document.getElementById("main"), R.h("h1", null, "Comparison of recordings"),
  R.comparisons(JSON.parse(document.getElementById("answer").textContent)));
