package main

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// makePlan chooses the tests for a change:
//
//	of        race detector, Wine     without race detector    staticcheck   virtual machine   end to end
//	test      affected packages       all others               all           all or short      all
//	changed   changed packages        affected by the rows     changed       none              what the rows name
//	night     all                     none                     all           -                 all
//
// "test" is `make test`, and so on. A night is `make night`, which takes hours and runs some tests in steps of their own.
// A package is affected if it has changed, or imports one that has. Wine runs packages whose code differs on Windows;
// of test and night all packages, if a row of .ci/paths has the word wine. The race detector is for programs: packages
// that are tests alone, such as the rules for the source and dist, run without it, in a tenth of the time. The tests of
// a kernel may have passed at another commit than those of packages, so ofKernel is the change since then, and c that
// of packages. "All or short": all if a row has the word kernels.
func makePlan(of string, c, ofKernel change, rows []row, h house) plan {
	changed, affected := h.affectedPackages(c, nil)
	heavy := affected // to test with the race detector and under Wine
	importers, omitted := len(affected)-len(changed), 0
	if of == "changed" {
		heavy, affected = h.affectedPackages(c, rows)
		omitted = len(changed) + importers - len(affected)
	}
	affected["."], affected["./cmd/flannel-shape"] = true, true // they read all sources and pages
	needs, endToEnd := h.needed(c, rows)
	p := plan{kernel: "none", endToEnd: "-", lab: labPackages(c)} // of "changed"; the others set them below
	for _, name := range slices.Sorted(maps.Keys(h.packages)) {
		own := h.packages[name]
		switch {
		case !own.linux: // only Wine can run it
		case heavy[name] && own.program:
			p.race = append(p.race, name)
		case affected[name] || of == "test":
			p.plain = append(p.plain, name)
		}
		if own.linux && (name == kubetest || own.uses[kubetest]) {
			p.kube = append(p.kube, name)
		}
		if own.windows && (heavy[name] && own.differs || needs["wine"] && of != "changed" || of == "night") {
			p.wine = append(p.wine, name)
		}
	}
	switch of {
	case "test":
		p.kernel, p.endToEnd, p.lab, p.lint, p.release, p.systems = "short", "", everyLabPackage, everyModule, needs["release"], needs["systems"]
		if needs, _ := h.needed(ofKernel, rows); needs["kernels"] {
			p.kernel = "all"
		}
	case "night":
		p.endToEnd, p.lab, p.lint = "", everyLabPackage, everyModule // kernels, a release and systems are steps of their own in a night
	case "changed":
		if len(endToEnd) > 0 {
			p.endToEnd = "^(" + strings.Join(endToEnd, "|") + ")$"
		}
		p.lint = h.lintPackages(c, changed)
		p.left = leftOut(needs, importers, omitted)
	}
	return p
}

// everyModule are the modules that staticcheck reads: the main one, and those of the lab and of releases.
var everyModule = []string{"./...", "./cmd/flannel-lab/...", "./cmd/flannel-release/..."}

// lintPackages returns the packages that have changed, and of other modules all packages if one has changed.
func (h house) lintPackages(c change, changed map[string]bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		if own := h.packages[name]; own != nil && own.linux {
			names = append(names, name)
		}
	}
	for _, module := range everyModule[1:] {
		dir := strings.TrimSuffix(strings.TrimPrefix(module, "./"), "...")
		if slices.ContainsFunc(c.files, func(file string) bool { return strings.HasPrefix(file, dir) && strings.HasSuffix(file, ".go") }) {
			names = append(names, module)
		}
	}
	return names
}

// kubetest starts an API server, so the tests of packages that use it wait until Kubernetes is built.
const kubetest = "./internal/test/kubetest"

// everyLabPackage includes the end-to-end tests.
var everyLabPackage = []string{"./..."}

// labPackages returns the packages of the lab that have changed, by their folders in its module. Not among them are
// e2e, for which rows choose the tests, soak, and the module kube.
func labPackages(c change) (names []string) {
	for _, file := range c.files {
		dir, ok := strings.CutPrefix(path.Dir(file), "cmd/flannel-lab")
		if ok && strings.HasSuffix(file, ".go") && dir != "/e2e" && dir != "/soak" && !strings.HasPrefix(dir, "/kube") && (dir == "" || dir[0] == '/') {
			names = append(names, "."+dir)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// leftOut names what `make changed` does not run of what a change needs. So many packages import what has changed, and so
// many of these the rows omit.
func leftOut(needs map[string]bool, importers, omitted int) (left []string) {
	if omitted > 0 {
		left = append(left, fmt.Sprintf("%d packages of %d that import what has changed: make test", omitted, importers))
	}
	if importers > 0 {
		left = append(left, "packages that import what has changed, with the race detector and under Wine: make test")
	}
	for _, l := range []struct{ need, text string }{
		{"wine", "all packages under Wine: make test-windows"},
		{"kernels", "other kernels: make test-kernels KERNELS=6.12"},
		{"systems", "other architectures: make test-systems"},
		{"release", "a release: make test-release"},
		{"soak", "make soak"},
	} {
		if needs[l.need] {
			left = append(left, l.text)
		}
	}
	return left
}

// affectedPackages returns the packages that have changed, or whose tests have or read a file that has; and these together
// with all that import a changed program. Of a program whose row says importers=…, only these import it; rows may be nil.
func (h house) affectedPackages(c change, rows []row) (changed, affected map[string]bool) {
	sources, tests := h.changedPackages(c)
	changed = maps.Clone(sources)
	maps.Copy(changed, tests)
	affected = maps.Clone(changed)
	for name, p := range h.packages {
		for source := range sources {
			r, _ := rowOf(rows, strings.TrimPrefix(source, "./"))
			if p.uses[source] && (len(r.importers) == 0 || slices.Contains(r.importers, strings.TrimPrefix(name, "./"))) {
				affected[name] = true
			}
		}
	}
	return changed, affected
}

// changedPackages returns the packages whose program has changed, which affects the packages that import them, and
// those of which only a test has, or a file that their tests read.
func (h house) changedPackages(c change) (sources, tests map[string]bool) {
	sources, tests = map[string]bool{}, map[string]bool{}
	if c.all {
		for name := range h.packages {
			sources[name] = true
		}
		return sources, tests
	}
	for _, file := range c.files {
		switch {
		case file == "go.mod" || file == "go.sum":
			for name := range h.packages {
				sources[name] = true
			}
		case strings.HasPrefix(file, "cmd/flannel-lab/kube/"): // the server that kubetest starts
			tests[kubetest] = true
		case strings.HasSuffix(file, ".sh") || strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/"):
			tests[h.packageOf(file)] = true
		default:
			sources[h.packageOf(file)] = true
		}
		for _, reader := range h.readers(file) {
			tests[reader] = true
		}
	}
	// "." stands for files at the top and in folders without a package, which no package imports.
	delete(sources, ".")
	return sources, tests
}

// packageOf returns the package of a file: the one in its folder, or the nearest above; "." if there is none.
func (h house) packageOf(file string) string {
	dir := path.Dir(file)
	for dir != "." && h.packages["./"+dir] == nil {
		dir = path.Dir(dir)
	}
	if dir == "." {
		return dir
	}
	return "./" + dir
}

// readers returns the packages whose tests read the file, if it is a page, a manifest or a script. A package reads a
// file below Documentation if the text of its tests has the name of the file.
func (h house) readers(file string) (names []string) {
	if strings.HasSuffix(file, ".md") || strings.HasPrefix(file, "Documentation/") || strings.HasPrefix(file, "dist/windows/") {
		names = append(names, "./pkg/doctor") // it checks the codes that these mention
	}
	if !strings.HasPrefix(file, "Documentation/") {
		return names
	}
	for name, p := range h.packages {
		if strings.Contains(p.tests, path.Base(file)) {
			names = append(names, name)
		}
	}
	return names
}

// needed returns the words of all rows of the change, and the end-to-end tests that these rows name, and those in
// changed files.
func (h house) needed(c change, rows []row) (needs map[string]bool, endToEnd []string) {
	needs = map[string]bool{}
	take := func(r row) {
		for _, word := range r.needs {
			needs[word] = true
		}
		for _, f := range h.endToEnd {
			if r.matches(f.name) {
				endToEnd = append(endToEnd, f.tests...)
			}
		}
	}
	if c.all {
		for _, r := range rows {
			take(r)
		}
	}
	for _, file := range c.files {
		if r, ok := rowOf(rows, file); ok {
			take(r)
		}
		for _, f := range h.endToEnd {
			if file == endToEndDir+"/"+f.name {
				endToEnd = append(endToEnd, f.tests...)
			}
		}
	}
	slices.Sort(endToEnd)
	return needs, slices.Compact(endToEnd)
}
