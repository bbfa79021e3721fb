// Package flannel_test holds the rules of the house: what every part of the repository keeps to.
package flannel_test

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// source is one Go file of this module or the lab's.
type source struct {
	path string // below the repository
	dir  string
	test bool
	file *ast.File
	fset *token.FileSet
}

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (strings.HasPrefix(e.Name(), ".") && path != "." || e.Name() == "bin" || e.Name() == "testdata") {
			return filepath.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{filepath.ToSlash(path), filepath.ToSlash(filepath.Dir(path)), strings.HasSuffix(path, "_test.go"), f, fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("only %d Go files found: the test looks in the wrong place", len(all))
	}
	return all
}

// within reports whether dir is one of the folders or below one.
func within(dir string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return dir == f || strings.HasPrefix(dir, f+"/") })
}

// pure are the packages that know nothing of any operating system; pkg/dataplane itself is, too.
var pure = []string{
	"backend", "subnet", "pkg/plan", "pkg/reconcile", "pkg/conf", "pkg/daemon", "pkg/doctor", "pkg/daemon/rollout",
	"pkg/cni/conflist", "pkg/firewall", "pkg/underlay", "pkg/daemon/reach", "pkg/status",
}

// mayImport lists, for a folder, the packages of this module that it may use; the folders not named here (cmd) may use
// any but each other.
var mayImport = map[string][]string{
	"backend":                     {"pkg/conf", "pkg/dataplane", "pkg/underlay", "subnet"},
	"subnet":                      {"pkg/conf", "pkg/file"},
	"subnet/etcd":                 {"pkg/conf", "subnet", "subnet/peerset"},
	"subnet/kube":                 {"pkg/conf", "pkg/file", "subnet", "subnet/peerset"},
	"pkg/conf":                    {},
	"pkg/reconcile":               {},
	"pkg/file":                    {},
	"pkg/dataplane":               {"pkg/conf"},
	"pkg/linux/rtnetlink":         {},
	"pkg/linux/charon":            {"pkg/conf", "pkg/file"},
	"pkg/linux":                   {"pkg/conf", "pkg/dataplane", "pkg/file", "pkg/linux"},
	"pkg/windows":                 {"pkg/dataplane", "pkg/file", "pkg/underlay", "pkg/windows/hns", "pkg/windows/hostconfig"},
	"pkg/firewall":                {},
	"pkg/linux/firewall":          {"pkg/firewall", "pkg/linux/rtnetlink"},
	"pkg/linux/udptunnel":         {"pkg/dataplane"},
	"pkg/windows/hns":             {"pkg/dataplane"},
	"pkg/windows/node":            {"backend", "pkg/cni/conflist", "pkg/dataplane", "pkg/file", "pkg/status", "pkg/underlay", "pkg/windows/hns", "subnet"},
	"pkg/underlay":                {"pkg/dataplane"},
	"pkg/linux/underlay":          {"pkg/linux/rtnetlink", "pkg/underlay"},
	"pkg/plan":                    {"backend", "pkg/dataplane", "subnet"},
	"pkg/status":                  {"pkg/dataplane", "pkg/file"},
	"pkg/doctor":                  {"pkg/dataplane", "pkg/doctor/ruleset", "pkg/firewall", "pkg/status", "pkg/underlay", "subnet"},
	"pkg/cni/conflist":            {"pkg/file"},
	"pkg/cni/install":             {"pkg/file"},
	"pkg/cni/plugin":              {"pkg/file"},
	"pkg/linux/sandbox":           {},
	"pkg/logging":                 {"pkg/file"},
	"pkg/windows/service":         {"pkg/conf", "pkg/file"},
	"pkg/probe":                   {"pkg/conf", "pkg/doctor", "pkg/linux/rtnetlink", "pkg/probe", "pkg/probe/path", "pkg/status", "pkg/underlay", "pkg/windows/hns", "pkg/windows/hostconfig", "pkg/windows/node", "pkg/windows/service", "subnet"},
	"pkg/probe/path":              {"pkg/dataplane", "pkg/doctor", "pkg/linux/rtnetlink", "pkg/status"},
	"pkg/status/metrics":          {"pkg/dataplane", "pkg/status"},
	"pkg/daemon/reach":            {"pkg/status", "subnet"},
	"pkg/daemon/rollout":          {},
	"pkg/version":                 {},
	"internal/test/nstest":        {"internal/test/eventually"},
	"internal/test/nstest/ipshow": {"pkg/linux/rtnetlink"},
	"internal/test/logtest":       {},
	"internal/test/eventually":    {},
	"internal/test/nettest":       {},
	"internal/test/vicitest":      {},
	// In a group of its own, since its name is longer than the others.
	"pkg/dataplane/extension": {"pkg/dataplane"},

	"pkg/daemon":                {"backend", "pkg/daemon/reach", "pkg/daemon/rollout", "pkg/dataplane", "pkg/firewall", "pkg/plan", "pkg/status", "pkg/status/metrics", "pkg/underlay", "subnet"},
	"internal/test/etcdtest":    {"internal/test/nettest"},
	"internal/test/managertest": {"internal/test/eventually", "subnet"},
	"subnet/peerset":            {"subnet"},
	"internal/test/kubetest":    {"internal/test/eventually", "internal/test/kubetest", "internal/test/nettest"},
}

// byAll are the packages that every other one may use: they use none of ours.
var byAll = []string{"pkg/reconcile"}

// rulesFor finds the row of mayImport for a folder: the longest name that it is within.
func rulesFor(dir string) (allowed []string, ruled bool) {
	best := ""
	for folder, list := range mayImport {
		if within(dir, folder) && len(folder) >= len(best) {
			best, allowed, ruled = folder, list, true
		}
	}
	return allowed, ruled
}

// mayUse reports whether a package with this row may import own. pkg/dataplane/extension starts programs, so that only its
// user may name it, and not everyone who may use pkg/dataplane.
func mayUse(row []string, own string) bool {
	const extension = "pkg/dataplane/extension"
	if within(own, extension) {
		return slices.Contains(row, extension)
	}
	return within(own, row...) || within(own, byAll...)
}

func TestImportGraph(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		allowed, ruled := rulesFor(s.dir)
		if !ruled && within(s.dir, "pkg", "backend", "subnet") {
			t.Errorf("%s: give its package a row in mayImport", s.path)
		}
		for _, path := range s.imports(t) {
			own, isOurs := strings.CutPrefix(path, "flannel/")
			switch {
			case isOurs && within(own, "cmd") && !within(s.dir, "cmd"):
				t.Errorf("%s imports %s: nothing builds on a command", s.path, path)
			case isOurs && ruled && !mayUse(allowed, own):
				t.Errorf("%s imports %s, which its package may not know", s.path, path)
			case within(path, "github.com/Microsoft/hcsshim") && !(s.dir == "pkg/windows/hns" && strings.HasSuffix(s.path, "_windows.go")):
				t.Errorf("%s imports %s: only pkg/windows/hns knows HNS's library, in files for Windows", s.path, path)
			case path == "log":
				t.Errorf("%s imports %s: the log is handed in, a *slog.Logger", s.path, path)
			}
		}
	}
}

// impure are the libraries that reach the operating system's network; files for one operating system do, too.
var impure = []string{"github.com/vishvananda/netlink", "github.com/mdlayher/netlink", "github.com/google/nftables",
	"github.com/coreos/go-iptables", "github.com/Microsoft/hcsshim", "golang.zx2c4.com/wireguard", "golang.org/x/sys", "os/exec"}

// seams are the packages that a pure one may use although they are not pure: each has its types and its pure half beside
// files for the operating systems. What lies behind them stays there.
var seams = []string{"pkg/file"}

// systems are the ends of names of files for one operating system.
var systems = []string{"_linux", "_windows"}

// forOneSystem says why a file is not for every operating system; "": it is.
func (s source) forOneSystem() string {
	name := strings.TrimSuffix(s.path, ".go")
	for _, end := range systems {
		if strings.HasSuffix(name, end) {
			return "a name in " + end
		}
	}
	for _, group := range s.file.Comments {
		for _, c := range group.List {
			if constraint.IsGoBuild(c.Text) {
				return c.Text
			}
		}
	}
	return ""
}

// imports are the paths that a file imports.
func (s source) imports(t *testing.T) (paths []string) {
	t.Helper()
	for _, i := range s.file.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func TestNoBuildTagsBeyondTheSeam(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !within(s.dir, pure...) {
			continue
		}
		if why := s.forOneSystem(); why != "" {
			t.Errorf("%s has %s: that belongs below pkg/linux or pkg/windows, or into pkg/file", s.path, why)
		}
	}
}

// A pure package is for every operating system, and reaches none through what it imports, by however many steps. The
// graph is that of all files, whatever system they are for.
func TestPurityIsTransitive(t *testing.T) {
	imports, faults := map[string][]string{}, map[string]string{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		if why := s.forOneSystem(); why != "" {
			faults[s.dir] = s.path + " has " + why
		}
		for _, path := range s.imports(t) {
			if own, ours := strings.CutPrefix(path, "flannel/"); ours {
				imports[s.dir] = append(imports[s.dir], own)
			} else if within(path, impure...) {
				faults[s.dir] = s.path + " imports " + path
			}
		}
	}
	for dir := range imports {
		if !within(dir, pure...) && dir != "pkg/dataplane" || within(dir, "internal/test/etcdtest", "internal/test/kubetest") {
			continue
		}
		through := map[string]string{dir: dir} // how a package is reached
		for next := []string{dir}; len(next) > 0; next = next[1:] {
			if why, faulty := faults[next[0]]; faulty {
				t.Errorf("%s is to be pure: %s, and %s", dir, through[next[0]], why)
			}
			for _, own := range imports[next[0]] {
				if _, seen := through[own]; !seen && !slices.Contains(seams, own) {
					through[own] = through[next[0]] + " imports " + own
					next = append(next, own)
				}
			}
		}
	}
}

func TestPackagesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if !s.test || strings.HasSuffix(s.file.Name.Name, "_test") || s.dir == "cmd/flannel-lab/e2e" {
			documented[s.dir] = documented[s.dir] || s.file.Doc != nil
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment", dir)
		}
	}
}

// Only main ends the process, nothing runs before it, and nothing panics on purpose.
func TestNoHiddenExits(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name == "init" && f.Recv == nil {
				t.Errorf("%s: func init runs before main, where nobody looks for it", s.fset.Position(f.Pos()))
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			where := s.fset.Position(call.Pos())
			switch f := call.Fun.(type) {
			case *ast.SelectorExpr:
				if x, ok := f.X.(*ast.Ident); ok && x.Name == "os" && f.Sel.Name == "Exit" && !within(s.dir, "cmd") {
					t.Errorf("%s: os.Exit outside of cmd", where)
				}
			case *ast.Ident:
				if f.Name == "panic" {
					t.Errorf("%s: panic", where)
				}
			}
			return true
		})
	}
}

// No thread of flanneld leaves the network namespace of the process, so that sockets may be opened on any goroutine. The
// lab and the machinery of tests do leave it.
func TestOneNetworkNamespace(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || within(s.dir, "cmd/flannel-lab", "internal/test/nstest") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			f, ok := n.(*ast.SelectorExpr)
			if ok && slices.Contains([]string{"Setns", "Unshare", "SYS_SETNS", "SYS_UNSHARE", "CLONE_NEWNET", "Cloneflags", "Unshareflags"}, f.Sel.Name) {
				t.Errorf("%s: %s changes a namespace", s.fset.Position(f.Pos()), f.Sel.Name)
			}
			return true
		})
	}
}

// A file of more than 400 lines wants to be two; 300 is the aim.
func TestFilesAreShort(t *testing.T) {
	for _, s := range sources(t) {
		if lines := s.fset.File(s.file.Pos()).LineCount(); lines > 400 && !s.test {
			t.Errorf("%s has %d lines", s.path, lines)
		}
	}
}

// On Windows, what os.MkdirAll creates below C:\ is open to every user. Outside of pkg/file, only files for Linux create
// directories by it.
func TestDirectoriesAreProtected(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !within(s.dir, "backend", "pkg", "subnet", "cmd/flannel", "cmd/flanneld") || s.dir == "pkg/file" || strings.HasSuffix(s.path, "_linux.go") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if f, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Mkdir", "MkdirAll", "MkdirTemp"}, f.Sel.Name) {
				if x, ok := f.X.(*ast.Ident); ok && x.Name == "os" {
					t.Errorf("%s: os.%s; use file.MkdirAll", s.fset.Position(f.Pos()), f.Sel.Name)
				}
			}
			return true
		})
	}
}

// wallClock are the files that may read or compare the time of day, which jumps: they tell it to people, or compare for
// equality alone.
var wallClock = []string{"subnet/kube/report.go", "subnet/kube/events.go", "pkg/file/watch.go"}

// Nothing waits for, or is decided by, the time of day. What Go measures between two readings of its clock does not
// jump with it, as long as it is not turned into a date.
func TestNothingIsTimedByTheWallClock(t *testing.T) {
	dates := []string{"Unix", "UnixMilli", "UnixMicro", "UnixNano", "Date", "Parse", "ParseInLocation", "ModTime"}
	for _, s := range sources(t) {
		if s.test || !within(s.dir, "backend", "pkg", "subnet", "cmd/flanneld") || within(s.dir, "internal/test/etcdtest", "internal/test/kubetest") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			f, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, _ := f.X.(*ast.Ident)
			ofTime := x != nil && x.Name == "time" && slices.Contains(dates, f.Sel.Name)
			ofMeta := x != nil && x.Name == "metav1" && f.Sel.Name == "Now"
			ofValue := slices.Contains(dates[:4], f.Sel.Name) || f.Sel.Name == "ModTime"
			if (ofTime || ofMeta || ofValue) && !slices.Contains(wallClock, s.path) {
				t.Errorf("%s: %s: the time of day jumps; measure durations", s.fset.Position(f.Pos()), f.Sel.Name)
			}
			return true
		})
	}
}
