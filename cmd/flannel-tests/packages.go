package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A house is what the repository consists of: the packages of its main module, and the end-to-end tests.
type house struct {
	packages map[string]*pkg // by the name below the top, such as ./pkg/file; the top itself is "."
	endToEnd []testFile
}

type pkg struct {
	uses    map[string]bool // packages that it or its tests import, directly or through others, on Linux or Windows
	linux   bool            // it has files for Linux
	windows bool            // it has files for Windows
	differs bool            // it is not the same on both: other files, or it asks for runtime.GOOS
	program bool            // it has code besides its tests
	tests   string          // the text of its tests on Linux
}

// testFile is a file of end-to-end tests that no build tag excludes.
type testFile struct {
	name  string // such as guard_peers_test.go
	tests []string
}

const endToEndDir = "cmd/flannel-lab/e2e"

// readPackages reads the repository below the working directory.
func readPackages() (h house, err error) {
	h.packages = map[string]*pkg{}
	linux, err := goList("linux")
	if err != nil {
		return house{}, err
	}
	windows, err := goList("windows")
	if err != nil {
		return house{}, err
	}
	for name, of := range linux {
		text, tests := readFiles(name, of.files)
		h.packages[name] = &pkg{uses: of.uses, linux: len(of.files) > 0, tests: tests}
		p, onWindows := h.packages[name], windows[name]
		maps.Copy(p.uses, onWindows.uses)
		p.windows = len(onWindows.files) > 0
		p.program = slices.ContainsFunc(of.files, func(file string) bool { return !strings.HasSuffix(file, "_test.go") })
		p.differs = strings.Contains(text, "runtime.GOOS") || !slices.Equal(of.files, onWindows.files)
	}
	h.endToEnd, err = readEndToEnd(endToEndDir)
	return h, err
}

// readFiles returns the text of a package, tests included, and that of its tests alone. A file that cannot be read does not
// count: go list names only files that were there.
func readFiles(dir string, files []string) (all, tests string) {
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			continue
		}
		all += string(text)
		if strings.HasSuffix(file, "_test.go") {
			tests += string(text)
		}
	}
	return all, tests
}

// listed is a package on one operating system.
type listed struct {
	uses  map[string]bool // see pkg
	files []string        // Go files that are compiled, tests included
}

// goList returns all packages of the module, with what they have on an operating system: nothing, if no file is for it.
func goList(system string) (map[string]listed, error) {
	cmd := exec.Command("go", "list", "-e", "-test", "-f",
		`{{.ImportPath}}|{{join .Deps " "}}|{{join .GoFiles " "}} {{join .TestGoFiles " "}} {{join .XTestGoFiles " "}}`, "./...")
	cmd.Env = append(os.Environ(), "GOOS="+system)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list for %s: %w", system, err)
	}
	all := map[string]listed{}
	for line := range strings.Lines(string(out)) {
		part := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		// For a package "pkg", go list also prints its test program, "pkg.test", which has the imports of the tests,
		// and variants such as "pkg [x.test]", which say nothing new.
		name, testProgram := strings.CutSuffix(part[0], ".test")
		if strings.Contains(name, " ") || len(part) != 3 {
			continue
		}
		name = below(name)
		l := all[name]
		if l.uses == nil {
			l.uses = map[string]bool{}
		}
		for _, used := range strings.Fields(part[1]) {
			if strings.HasPrefix(used, module+"/") || used == module {
				l.uses[below(used)] = true
			}
		}
		if !testProgram { // whose only file is generated
			l.files = strings.Fields(part[2])
		}
		all[name] = l
	}
	return all, nil
}

const module = "flannel"

// below turns the path of an import into the name of the folder: flannel/pkg/file is ./pkg/file.
func below(path string) string { return "." + strings.TrimPrefix(path, module) }

var testName = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(t \*testing\.T\)`)

// readEndToEnd returns the files of end-to-end tests in a directory, with the names of their tests.
func readEndToEnd(dir string) (files []testFile, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(string(text), "//go:build ") {
			continue
		}
		f := testFile{name: filepath.Base(name)}
		for _, m := range testName.FindAllStringSubmatch(string(text), -1) {
			f.tests = append(f.tests, m[1])
		}
		files = append(files, f)
	}
	return files, nil
}
