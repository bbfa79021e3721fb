// Command flannel-tests prints which tests a change needs, as variables for make: for `make test` and `.ci/run`, or
// for `make changed`. The tests that a change of a folder needs, beyond those of its packages and of the packages that
// import them, are in .ci/paths. The command runs at the top of the repository.
//
//	flannel-tests [-of test|changed|night] [-base COMMIT] [-kernel 6.1]
//
// After the tests have passed, it records that:
//
//	flannel-tests -passed FILE -began COMMIT [-kernel "6.1 6.12"]
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	of := flag.String("of", "test", "`what` runs: test, changed or night")
	base := flag.String("base", "", "`commit` to compare with; default: for test, those of .ci/green, and for changed, origin/main or main")
	kernel := flag.String("kernel", "", "`series` of the kernel in a virtual machine; for -passed maybe several")
	passed := flag.String("passed", "", "all tests have passed: write the next .ci/green to this `file`")
	began := flag.String("began", "", "with -passed: PLAN_HEAD of the `commit` whose plan was run")
	flag.Parse()
	err := error(nil)
	if *passed != "" {
		err = recordPassed(*began, strings.Fields(*kernel), *passed)
	} else {
		err = run(*of, *base, *kernel)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "flannel-tests:", err)
		os.Exit(1)
	}
}

// run prints a plan on stdout and its summary on stderr. series is that of the kernel in a virtual machine; "" with
// none.
func run(of, base, series string) error {
	if of != "test" && of != "changed" && of != "night" {
		return fmt.Errorf("-of %q: want test, changed or night", of)
	}
	text, err := os.ReadFile(".ci/paths")
	if err != nil {
		return err
	}
	rows, err := parseRows(string(text))
	if err != nil {
		return fmt.Errorf(".ci/paths: %w", err)
	}
	house, err := readPackages()
	if err != nil {
		return err
	}
	baseOfPackages, baseOfKernel, err := readBases(of, base, series)
	if err != nil {
		return err
	}
	ofPackages, err := readChange(of, baseOfPackages)
	if err != nil {
		return err
	}
	ofKernel, err := readChange(of, baseOfKernel)
	if err != nil {
		return err
	}
	p := makePlan(of, ofPackages, ofKernel, rows, house)
	p.head, _ = cleanHead() // "": not known, such as in an archive
	fmt.Print(p.variables())
	fmt.Fprintln(os.Stderr, p.summary(ofPackages, ofKernel))
	return nil
}

// A plan says what to test; makePlan makes it, and make reads it as variables. Packages have names below the top of the
// repository, such as ./pkg/file.
type plan struct {
	race, plain []string // packages to test with the race detector, and without it
	kube        []string // packages whose tests need Kubernetes' programs
	wine        []string // packages to test as programs for Windows
	kernel      string   // tests in a virtual machine: "all", "short" (the tunnels alone) or "none"
	endToEnd    string   // the argument of -run, "" for all; "-" for none
	lint        []string // what staticcheck reads: packages, and patterns of everyModule
	lab         []string // packages of the lab's module, by their folders below it
	release     bool     // make one, and look at it
	systems     bool     // test on other architectures
	left        []string // what the change needs and `make changed` does not run, for people
	head        string   // cleanHead when the plan was made: -began of the later -passed
}

// variables is the plan in make's syntax. Packages in kube are in race or plain, too: make takes them out of these
// lists and tests them when Kubernetes is built.
func (p plan) variables() string {
	yes := map[bool]string{true: "yes"}
	var b strings.Builder
	for _, v := range []struct{ name, value string }{
		{"PLAN_RACE", strings.Join(p.race, " ")},
		{"PLAN_PLAIN", strings.Join(p.plain, " ")},
		{"PLAN_KUBE", strings.Join(p.kube, " ")},
		{"PLAN_WINE", strings.Join(p.wine, " ")},
		{"PLAN_KERNEL", p.kernel},
		{"PLAN_E2E", strings.ReplaceAll(p.endToEnd, "$", "$$")},
		{"PLAN_LINT", strings.Join(p.lint, " ")},
		{"PLAN_LAB", strings.Join(p.lab, " ")},
		{"PLAN_RELEASE", yes[p.release]},
		{"PLAN_SYSTEMS", yes[p.systems]},
		{"PLAN_HEAD", p.head},
	} {
		fmt.Fprintf(&b, "%s := %s\n", v.name, v.value)
	}
	return b.String()
}

// summary describes the plan for people. c is the change that packages are compared with.
func (p plan) summary(c, ofKernel change) string {
	var b strings.Builder
	fmt.Fprintf(&b, "compared with %s, %d files differ.\n", c.since, len(c.files))
	for _, line := range []struct {
		what string
		list []string
	}{{"with the race detector", p.race}, {"without it", p.plain}, {"under Wine", p.wine}} {
		if len(line.list) > 0 {
			fmt.Fprintf(&b, "packages to test %s: %d: %s\n", line.what, len(line.list), strings.Join(line.list, " "))
		}
	}
	if p.kernel != "none" {
		fmt.Fprintf(&b, "in a virtual machine, compared with %s: %s\n", ofKernel.since, p.kernel)
	}
	switch p.endToEnd {
	case "":
		b.WriteString("end-to-end tests: all\n")
	case "-": // none: no line
	default:
		fmt.Fprintf(&b, "end-to-end tests: %s\n", p.endToEnd)
	}
	for _, what := range p.left {
		fmt.Fprintf(&b, "not run: %s\n", what)
	}
	return strings.TrimRight(b.String(), "\n")
}
