package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// module is a Go module that is linked into our programs, or Go's standard library.
type module struct {
	path, version string
	licences      []string // SPDX identifiers
	texts         []text   // licences and notices
}

// text is a file of a module, by its name there.
type text struct{ name, content string }

type modules []module

// modules returns what is linked into the programs of all systems, by their build information, sorted. It reads the
// licences in Go's module cache.
func (r *release) modules() (modules, error) {
	programs, err := filepath.Glob(filepath.Join(r.programs, "k", "cni", "*.exe")) // CNI plugins for Windows, some of others
	if err != nil {
		return nil, err
	}
	programs = append(programs, r.allPrograms()...)
	linked := map[string]*debug.Module{} // by path and version
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, err
		}
		if info.GoVersion != runtime.Version() { // the Makefile runs this command with the Go that builds the programs
			return nil, fmt.Errorf("%s was built by %s, and this command by %s: run make release-deps and then make release", program, info.GoVersion, runtime.Version())
		}
		for _, m := range append(info.Deps, &info.Main) {
			if m.Replace != nil {
				return nil, fmt.Errorf("%s is replaced by %s: its licence is not known", m.Path, m.Replace.Path)
			}
			if m.Path != "flannel" {
				linked[m.Path+"@"+m.Version] = m
			}
		}
	}
	known, err := assets.DefaultClassifier()
	if err != nil {
		return nil, err
	}
	all := modules{}
	for at, m := range linked {
		dir, err := r.directory(at)
		if err != nil {
			return nil, err
		}
		all = append(all, module{path: m.Path, version: m.Version})
		if err := all[len(all)-1].readLicences(dir, known); err != nil {
			return nil, err
		}
	}
	root, err := r.goOutput("env", "GOROOT")
	if err != nil {
		return nil, err
	}
	standard := module{path: "std", version: runtime.Version()}
	if err := standard.readLicences(strings.TrimSpace(string(root)), known); err != nil {
		return nil, err
	}
	all = append(all, standard)
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.path+"@"+a.version, b.path+"@"+b.version) })
	return all, nil
}

// directory returns where Go's module cache has a module, given as path@version. make release-deps has downloaded it.
func (r *release) directory(module string) (string, error) {
	out, err := r.goOutput("mod", "download", "-json", module)
	if err != nil {
		return "", err
	}
	var answer struct{ Dir string }
	err = json.Unmarshal(out, &answer)
	return answer.Dir, err
}

// goOutput runs the command go in the repository.
func (r *release) goOutput(args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = r.source
	out, err := cmd.Output()
	if exit, isExit := errors.AsType[*exec.ExitError](err); isExit {
		return nil, fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return out, err
}

// legal are the names of files with licences and notices.
var legal = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|notice|patents)`)

// confidence is how sure the classifier has to be: it counts words that differ from those of the licence, and 1 is
// none.
const confidence = 0.8

// readLicences sets licences and texts from the files in the module's directory. A text that the classifier does not
// know is no error here: see check.
func (m *module) readLicences(dir string, known *classifier.Classifier) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.IsDir() || !legal.MatchString(f.Name()) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		m.texts = append(m.texts, text{f.Name(), string(content)})
		for _, match := range known.Match(content).Matches {
			if match.MatchType == "License" && match.Confidence >= confidence && !slices.Contains(m.licences, match.Name) {
				m.licences = append(m.licences, match.Name)
			}
		}
	}
	slices.Sort(m.licences)
	if len(m.texts) == 0 {
		return fmt.Errorf("%s %s has no file with its licence", m.path, m.version)
	}
	return nil
}

// allowed are the licences of which we pass on binaries: none asks for more than its text and notices.
var allowed = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "Unicode-DFS-2016", "Unlicense", "Zlib"}

// checkLicences fails if a module has another licence than those that are allowed, or one that nobody knows.
func (r *release) checkLicences() error {
	all, err := r.modules()
	if err != nil {
		return err
	}
	var failed error
	for _, m := range all {
		fmt.Printf("%-28s %s %s\n", strings.Join(m.licences, " "), m.path, m.version)
		failed = errors.Join(failed, m.check())
	}
	return failed
}

// check returns an error if a licence of the module is not allowed, or none was recognized.
func (m *module) check() error {
	if len(m.licences) == 0 {
		return fmt.Errorf("%s %s: the licence is not recognized: read it, and replace the module or extend the list in modules.go", m.path, m.version)
	}
	for _, l := range m.licences {
		if !slices.Contains(allowed, l) {
			return fmt.Errorf("%s %s: licence %s is not among the allowed ones: replace the module or extend the list in modules.go", m.path, m.version, l)
		}
	}
	return nil
}

// notices returns THIRD-PARTY-LICENSES: the licences and notices of all modules. A text that several modules have is
// there once, below their names.
func (all modules) notices() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("Licences and notices of the software that flanneld and its CNI plugin contain.\n")
	users := map[string][]string{}
	var order []string
	for _, m := range all {
		if err := m.check(); err != nil {
			return nil, err
		}
		for _, t := range m.texts {
			if users[t.content] == nil {
				order = append(order, t.content)
			}
			users[t.content] = append(users[t.content], fmt.Sprintf("%s %s (%s)", m.path, m.version, t.name))
		}
	}
	for _, content := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[content], "\n"), strings.TrimSpace(content))
	}
	return b.Bytes(), nil
}
