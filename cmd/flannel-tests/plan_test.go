package main

import (
	"slices"
	"strings"
	"testing"
)

// A small house: file is used by hns and daemon, daemon by the command.
func smallHouse() house {
	uses := func(names ...string) map[string]bool {
		m := map[string]bool{}
		for _, name := range names {
			m[name] = true
		}
		return m
	}
	return house{
		packages: map[string]*pkg{
			".":                 {linux: true},
			"./pkg/file":        {uses: uses("./pkg/file"), linux: true, windows: true, program: true, differs: true},
			"./pkg/windows/hns": {uses: uses("./pkg/windows/hns", "./pkg/file"), windows: true, differs: true, program: true},
			"./pkg/conf":        {uses: uses("./pkg/conf"), linux: true, windows: true, program: true},
			"./pkg/daemon":      {uses: uses("./pkg/daemon", "./pkg/file", "./pkg/conf"), tests: `"scale.md"`, linux: true, windows: true, program: true},
			"./pkg/doctor":      {uses: uses("./pkg/doctor"), linux: true, windows: true, program: true},
			"./cmd/d":           {uses: uses("./cmd/d", "./pkg/daemon", "./pkg/file", "./pkg/conf", kubetest), linux: true, windows: true, program: true},
		},
		endToEnd: []testFile{{"loss_test.go", []string{"TestNoPacketIsLost"}}, {"windows_cni_test.go", []string{"TestWindowsCNI", "TestWindowsPods"}}},
	}
}

func TestMakePlan(t *testing.T) {
	rows := []row{{path: "pkg/windows/hns", needs: []string{"wine"}, files: []string{"windows_*"}}, {path: "pkg/daemon", needs: []string{"kernels"}},
		{path: "pkg/conf", importers: []string{"pkg/daemon"}}}
	for _, c := range []struct {
		what, of string
		files    []string
		want     []string // lines of the answer
	}{
		{"a package and those that import it", "test", []string{"pkg/daemon/daemon.go"}, []string{
			"PLAN_RACE := ./cmd/d ./pkg/daemon", "PLAN_PLAIN := . ./pkg/conf ./pkg/doctor ./pkg/file", "PLAN_WINE := ", "PLAN_KERNEL := all", "PLAN_E2E := "}},
		{"a test concerns its package alone", "test", []string{"pkg/daemon/daemon_test.go"}, []string{"PLAN_RACE := ./pkg/daemon", "PLAN_KERNEL := all"}},
		{"code for Windows", "test", []string{"pkg/file/watch.go"}, []string{
			"PLAN_RACE := ./cmd/d ./pkg/daemon ./pkg/file", "PLAN_WINE := ./pkg/file ./pkg/windows/hns", "PLAN_KERNEL := short"}},
		{"a package that needs all of Wine", "test", []string{"pkg/windows/hns/hns.go"}, []string{
			"PLAN_RACE := ", "PLAN_WINE := ./cmd/d ./pkg/conf ./pkg/daemon ./pkg/doctor ./pkg/file ./pkg/windows/hns", "PLAN_LINT := ./... ./cmd/flannel-lab/... ./cmd/flannel-release/..."}},
		{"a package that needs all of Wine, for now", "changed", []string{"pkg/windows/hns/hns.go"}, []string{
			"PLAN_RACE := ", "PLAN_PLAIN := .", "PLAN_WINE := ./pkg/windows/hns", "PLAN_KERNEL := none", "PLAN_LINT := ",
			"PLAN_E2E := ^(TestWindowsCNI|TestWindowsPods)$$"}},
		{"a package, and for now those that import it without what is heavy", "changed", []string{"pkg/file/watch.go"}, []string{
			"PLAN_RACE := ./pkg/file", "PLAN_PLAIN := . ./cmd/d ./pkg/daemon", "PLAN_KUBE := ./cmd/d", "PLAN_WINE := ./pkg/file", "PLAN_LINT := ./pkg/file"}},
		{"a package of whose importers the row names some", "changed", []string{"pkg/conf/conf.go"}, []string{
			"PLAN_RACE := ./pkg/conf", "PLAN_PLAIN := . ./pkg/daemon"}},
		{"all of its importers", "test", []string{"pkg/conf/conf.go"}, []string{"PLAN_RACE := ./cmd/d ./pkg/conf ./pkg/daemon"}},
		{"another module", "changed", []string{"cmd/flannel-lab/e2e/loss_test.go", "pkg/daemon/daemon_test.go"}, []string{
			"PLAN_RACE := ./pkg/daemon", "PLAN_PLAIN := .", "PLAN_LINT := . ./pkg/daemon ./cmd/flannel-lab/..."}},
		{"an end-to-end test", "changed", []string{"cmd/flannel-lab/e2e/loss_test.go"}, []string{"PLAN_RACE := ", "PLAN_E2E := ^(TestNoPacketIsLost)$$", "PLAN_LAB := "}},
		{"packages of the lab", "changed", []string{"cmd/flannel-lab/lab/a.go", "cmd/flannel-lab/lab/b.go", "cmd/flannel-lab/main.go"}, []string{"PLAN_LAB := . ./lab"}},
		{"testdata below a package", "changed", []string{"pkg/daemon/testdata/a/b.json"}, []string{"PLAN_RACE := ./pkg/daemon", "PLAN_E2E := -"}},
		{"a page that a test reads", "changed", []string{"Documentation/scale.md"}, []string{"PLAN_RACE := ./pkg/daemon ./pkg/doctor"}},
		{"a module", "changed", []string{"go.mod"}, []string{"PLAN_RACE := ./cmd/d ./pkg/conf ./pkg/daemon ./pkg/doctor ./pkg/file"}},
		{"nothing", "test", nil, []string{"PLAN_RACE := ", "PLAN_KERNEL := short", "PLAN_RELEASE := ", "PLAN_E2E := "}},
		{"what needs Kubernetes", "test", nil, []string{"PLAN_KUBE := ./cmd/d"}},
	} {
		p := makePlan(c.of, change{files: c.files}, change{files: c.files}, rows, smallHouse())
		got := strings.Split(p.variables(), "\n")
		for _, line := range c.want {
			if !slices.Contains(got, line) {
				t.Errorf("%s: no line %q in\n%s", c.what, line, p.variables())
			}
		}
	}
}

// What make changed leaves to make test, it names.
func TestLeftOut(t *testing.T) {
	rows := []row{{path: "pkg/file", needs: []string{"wine", "kernels"}}, {path: "pkg/conf", importers: []string{"pkg/daemon"}}}
	for file, want := range map[string][]string{
		"pkg/file/watch.go":      {"packages that import", "all packages under Wine", "other kernels"},
		"pkg/file/watch_test.go": {"all packages under Wine", "other kernels"},
		"pkg/conf/conf.go":       {"1 packages of 2 that import", "packages that import"},
		"cmd/d/main.go":          nil,
	} {
		got := makePlan("changed", change{files: []string{file}}, change{}, rows, smallHouse()).left
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%s: left out is %q, want %q", file, got, want)
		}
	}
}

// Without a commit to compare with, everything is tested.
func TestEverything(t *testing.T) {
	rows := []row{{path: "pkg/daemon", needs: []string{"kernels", "release"}}}
	p := makePlan("test", change{all: true}, change{all: true}, rows, smallHouse())
	if len(p.race) != 5 || len(p.plain) != 1 || p.kernel != "all" || !p.release || p.endToEnd != "" {
		t.Errorf("%+v", p)
	}
}

// The tests of a kernel may have passed at another commit than those of packages.
func TestKernelOfAnotherCommit(t *testing.T) {
	rows := []row{{path: "pkg/daemon", needs: []string{"kernels"}}}
	changed, same := change{files: []string{"pkg/daemon/daemon.go"}}, change{}
	if p := makePlan("test", same, changed, rows, smallHouse()); len(p.race) != 0 || p.kernel != "all" {
		t.Errorf("changed for the kernel: %+v", p)
	}
	if p := makePlan("test", changed, same, rows, smallHouse()); len(p.race) == 0 || p.kernel != "short" {
		t.Errorf("changed for packages: %+v", p)
	}
}
