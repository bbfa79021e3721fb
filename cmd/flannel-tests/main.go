// Command flannel-tests prints which tests a change needs, as variables for make: those of `make test` and `.ci/run`, or
// those of `make changed`. What belongs to a folder, beyond the tests of its packages and of those that import them, is
// in .ci/paths.
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

// A plan is the answer: names of packages below the top of the repository, such as ./pkg/file.
type plan struct {
	race, plain []string // packages to test with the race detector, and without it
	kube        []string // packages whose tests need Kubernetes' programs
	wine        []string // packages to test as programs for Windows
	kernel      string   // tests in a virtual machine: "all", "short" or "none"
	endToEnd    string   // the argument of -run, "" for all; "-" for none
	lab         []string // packages of the lab's module
	release     bool     // make one, and look at it
	systems     bool     // other architectures
	left        []string // what `make changed` does not run
	head        string   // cleanHead when the plan was made
}

// variables is the plan in make's syntax. Packages whose tests need Kubernetes are chosen from these lists by make.
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
		{"PLAN_LAB", strings.Join(p.lab, " ")},
		{"PLAN_RELEASE", yes[p.release]},
		{"PLAN_SYSTEMS", yes[p.systems]},
		{"PLAN_HEAD", p.head},
	} {
		fmt.Fprintf(&b, "%s := %s\n", v.name, v.value)
	}
	return b.String()
}

// summary is for people.
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
	case "-":
	default:
		fmt.Fprintf(&b, "end-to-end tests: %s\n", p.endToEnd)
	}
	for _, what := range p.left {
		fmt.Fprintf(&b, "not run: %s\n", what)
	}
	return strings.TrimRight(b.String(), "\n")
}
