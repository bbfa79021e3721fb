package flannel_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The kinds of flakes that can be seen in the source. The rules are for tests and the packages that help them. A test
// whose time is that of testing/synctest may sleep and be impatient.

// testCode reports whether a file is a test or in a package that helps tests.
func (s source) testCode() bool {
	return s.test || strings.HasSuffix(path.Base(s.dir), "test")
}

// inBubbles reports whether a file is about tests in bubbles of testing/synctest.
func (s source) inBubbles() bool {
	return s.importsPath("testing/synctest") || within(s.dir, bubbles...)
}

// bubbles are packages whose tests share helpers that run in bubbles.
var bubbles = []string{"pkg/windows"}

func (s source) importsPath(want string) bool {
	return slices.ContainsFunc(s.file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(want) })
}

// explained reports whether there is a comment on the line of a node.
func (s source) explained(n ast.Node) bool {
	line := s.fset.Position(n.Pos()).Line
	return slices.ContainsFunc(s.file.Comments, func(g *ast.CommentGroup) bool { return s.fset.Position(g.Pos()).Line == line })
}

// calls reports whether an expression is a call of package.function, or of a method if the package is "".
func calls(n ast.Node, pkg string, names ...string) *ast.CallExpr {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return nil
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains(names, f.Sel.Name) {
		return nil
	}
	if x, ok := f.X.(*ast.Ident); pkg != "" && (!ok || x.Name != pkg) {
		return nil
	}
	return call
}

// fails reports whether statements end or fail the test.
func fails(body []ast.Stmt) (found bool) {
	for _, stmt := range body {
		ast.Inspect(stmt, func(n ast.Node) bool {
			found = found || n != nil && calls(n, "", "Fatal", "Fatalf", "Error", "Errorf") != nil
			return !found
		})
	}
	return found
}

// floor is the least limit of time that a busy machine keeps to.
const floor = time.Minute

// short reports whether an expression is a duration below floor. The constants are those of the package.
func short(e ast.Expr, constants map[string]ast.Expr) bool {
	d, ok := duration(e, constants, 0)
	return ok && d < float64(floor)
}

var timeUnits = map[string]time.Duration{"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond,
	"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}

func duration(e ast.Expr, constants map[string]ast.Expr, depth int) (float64, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		v, err := strconv.ParseFloat(strings.ReplaceAll(e.Value, "_", ""), 64)
		return v, err == nil
	case *ast.ParenExpr:
		return duration(e.X, constants, depth)
	case *ast.SelectorExpr:
		x, ok := e.X.(*ast.Ident)
		d, known := timeUnits[e.Sel.Name]
		return float64(d), ok && x.Name == "time" && known
	case *ast.Ident:
		value, known := constants[e.Name]
		if !known || depth > 5 {
			return 0, false
		}
		return duration(value, constants, depth+1)
	case *ast.BinaryExpr:
		x, okX := duration(e.X, constants, depth)
		y, okY := duration(e.Y, constants, depth)
		switch e.Op {
		case token.MUL:
			return x * y, okX && okY
		case token.QUO:
			return x / y, okX && okY
		case token.ADD:
			return x + y, okX && okY
		}
	}
	return 0, false
}

// flake is a kind of flake, with sources that have it and sources that do not. A source is the body of a test.
type flake struct {
	name    string
	find    func(s source, n ast.Node, constants map[string]ast.Expr) bool
	advice  string
	bad, ok []string
}

var flakes = []flake{{
	name: "sleep",
	find: func(s source, n ast.Node, _ map[string]ast.Expr) bool {
		return !s.inBubbles() && calls(n, "time", "Sleep") != nil && !s.explained(n) && s.dir != "internal/test/eventually"
	},
	advice: "wait for the state with internal/test/eventually; if it is a pause, a comment on the line says of what",
	bad:    []string{`time.Sleep(time.Second)`, `for !ready() { time.Sleep(time.Millisecond) }`, `for ; !ready(); time.Sleep(1) {}`},
	ok:     []string{`time.Sleep(time.Second) // longer than flanneld retries`, `eventually.True(t, "ready", ready)`},
}, {
	name: "limit",
	find: func(s source, n ast.Node, constants map[string]ast.Expr) bool {
		return !s.inBubbles() && !s.explained(n) && impatient(n, constants)
	},
	advice: "a busy machine takes longer; wait for minutes, or say on the line why the time is no limit",
	bad: []string{
		"select {\ncase <-done:\ncase <-time.After(10 * time.Second):\n\tt.Fatal(1)\n}",
		"if time.Since(began) > 5*time.Second {\n\tt.Error(1)\n}",
		`ctx, cancel := context.WithTimeout(t.Context(), time.Second)`,
		`conn.SetReadDeadline(time.Now().Add(brief))`,
	},
	ok: []string{
		"select {\ncase <-done:\n\tt.Fatal(1)\ncase <-time.After(100*time.Millisecond):\n}",
		"if time.Since(began) > 5*time.Minute {\n\tt.Error(1)\n}",
		`ctx, cancel := context.WithTimeout(t.Context(), time.Second) // it must end`,
		`conn.SetReadDeadline(time.Now().Add(patient))`,
	},
}, {
	name: "host",
	find: func(s source, n ast.Node, _ map[string]ast.Expr) bool {
		// The commands of end-to-end tests run in the namespaces of a node.
		private := s.importsPath("flannel/internal/test/nstest") || within(s.dir, "internal/test/nstest", "cmd/flannel-lab/e2e")
		return !private && !s.explained(n) && ofWholeHost(n)
	},
	advice: "other tests have processes, namespaces and files, too: look in namespaces of the test (internal/test/nstest), or in t.TempDir",
	bad: []string{`os.ReadDir("/proc")`, `filepath.Glob("/proc/*/ns/net")`, `run("ip netns list")`, `exec.Command("pgrep", "charon")`,
		`os.ReadDir(os.TempDir())`, `os.MkdirTemp("", "x")`, `os.Create("/tmp/x")`},
	ok: []string{`os.ReadDir("/proc/self/fd")`, `os.MkdirTemp(dir, "x")`, `os.Create(filepath.Join(t.TempDir(), "x"))`},
}, {
	name: "mark",
	find: func(_ source, n ast.Node, _ map[string]ast.Expr) bool {
		block, ok := n.(*ast.BlockStmt)
		return ok && lateMark(block.List)
	},
	advice: "nothing happens between the mark and the wait: take the mark before the action, or the line may come before it",
	bad:    []string{"n.Restart()\nmark := len(n.Log())\nlogged(t, n, mark, `cause=x`)"},
	ok:     []string{"mark := len(n.Log())\nn.Restart()\nlogged(t, n, mark, `cause=x`)"},
}, {
	name: "order",
	find: func(s source, n ast.Node, _ map[string]ast.Expr) bool {
		loop, ok := n.(*ast.RangeStmt)
		return ok && !s.explained(n) && collects(loop) && s.inMapOrder(loop)
	},
	advice: "the order of a map is another one each time: sort what is collected, or compare it as a set",
	bad: []string{
		"all := map[string]int{}\nvar names []string\nfor name := range all { names = append(names, name) }",
		"var b strings.Builder\nall := make(map[string]int)\nfor name := range all { fmt.Fprintln(&b, name) }",
		"for name := range map[string]int{} {\n\ttext += name + \" \"\n}",
	},
	ok: []string{
		"all := map[string]int{}\nvar names []string\nfor name := range all { names = append(names, name) }\nslices.Sort(names)",
		"all := []string{}\nvar names []string\nfor _, name := range all { names = append(names, name) }",
		"for name := range map[string]int{} { t.Run(name, nil) }",
	},
}}

// impatient reports whether a node is a limit below floor.
func impatient(n ast.Node, constants map[string]ast.Expr) bool {
	switch n := n.(type) {
	case *ast.CommClause: // case <-time.After(short): t.Fatal()
		receive, ok := n.Comm.(*ast.ExprStmt)
		if !ok || !fails(n.Body) {
			return false
		}
		from, ok := receive.X.(*ast.UnaryExpr)
		if !ok {
			return false
		}
		after := calls(from.X, "time", "After")
		return after != nil && short(after.Args[0], constants)
	case *ast.IfStmt: // if time.Since(began) > short { t.Fatal() }
		if !fails(n.Body.List) {
			return false
		}
		found := false
		ast.Inspect(n.Cond, func(n ast.Node) bool {
			b, ok := n.(*ast.BinaryExpr)
			found = found || ok && (b.Op == token.GTR || b.Op == token.GEQ) && calls(b.X, "time", "Since") != nil && short(b.Y, constants)
			return !found
		})
		return found
	case *ast.CallExpr:
		if call := calls(n, "context", "WithTimeout"); call != nil {
			return short(call.Args[1], constants)
		}
		if call := calls(n, "", "SetDeadline", "SetReadDeadline", "SetWriteDeadline"); call != nil {
			add := calls(call.Args[0], "", "Add")
			return add != nil && short(add.Args[0], constants)
		}
	}
	return false
}

var hostWide = regexp.MustCompile(`^/proc$|^/proc/(\*|\[0-9\])|^/tmp\b|\bip netns (list|ls)\b|\b(pgrep|pkill|pidof|killall)\b|\bps -?(e|ax|A|C)`)

// ofWholeHost reports whether a node lists what the whole machine has.
func ofWholeHost(n ast.Node) bool {
	if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		text, err := strconv.Unquote(lit.Value)
		return err == nil && hostWide.MatchString(text)
	}
	if call := calls(n, "os", "MkdirTemp", "CreateTemp"); call != nil {
		dir, ok := call.Args[0].(*ast.BasicLit)
		return ok && dir.Value == `""`
	}
	return calls(n, "os", "TempDir") != nil
}

// lateMark reports whether one of the statements takes a mark of a log, and the next one waits with it.
func lateMark(list []ast.Stmt) bool {
	for i := range len(list) - 1 {
		assign, ok := list[i].(*ast.AssignStmt)
		if !ok || len(assign.Lhs) != 1 || len(assign.Rhs) != 1 {
			continue
		}
		mark, ok := assign.Lhs[0].(*ast.Ident)
		size, isCall := assign.Rhs[0].(*ast.CallExpr)
		if !ok || !isCall || len(size.Args) != 1 || calls(size.Args[0], "", "Log") == nil {
			continue
		}
		next, ok := list[i+1].(*ast.ExprStmt)
		if !ok {
			continue
		}
		call, ok := next.X.(*ast.CallExpr)
		if !ok || len(call.Args) < 3 {
			continue
		}
		f, isName := call.Fun.(*ast.Ident)
		used, isMark := call.Args[2].(*ast.Ident)
		if isName && isMark && used.Name == mark.Name && slices.Contains([]string{"logged", "once", "loggedNaming"}, f.Name) {
			return true
		}
	}
	return false
}

// packageConstants returns the values of the constants and variables of each package.
func packageConstants(all []source) map[string]map[string]ast.Expr {
	values := map[string]map[string]ast.Expr{}
	for _, s := range all {
		if values[s.dir] == nil {
			values[s.dir] = map[string]ast.Expr{}
		}
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && len(v.Values) == len(v.Names) {
					for i, name := range v.Names {
						values[s.dir][name.Name] = v.Values[i]
					}
				}
			}
		}
	}
	return values
}

// found returns where a source has a kind of flake.
func (f flake) found(s source, constants map[string]ast.Expr) (at []token.Position) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		if n != nil && f.find(s, n, constants) {
			at = append(at, s.fset.Position(n.Pos()))
		}
		return true
	})
	return at
}

func TestNoFlakesInTheSource(t *testing.T) {
	all := sources(t)
	constants := packageConstants(all)
	for _, s := range all {
		if !s.testCode() || s.dir == "." {
			continue
		}
		for _, f := range slices.Concat(flakes, looks) {
			for _, at := range f.found(s, constants[s.dir]) {
				t.Errorf("%s: %s: %s", at, f.name, f.advice)
			}
		}
	}
}

// Each rule sees what it is for, and nothing else.
func TestFlakesAreSeen(t *testing.T) {
	parse := func(body string) source {
		fset := token.NewFileSet()
		text := "package p\n\nconst (\n\tbrief = 3 * time.Second\n\tpatient = 20 * brief\n)\n\nfunc Test(t *testing.T) {\n" + body + "\n}\n"
		file, err := parser.ParseFile(fset, "p_test.go", text, parser.ParseComments)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		return source{"pkg/p/p_test.go", "pkg/p", true, file, fset}
	}
	for _, f := range slices.Concat(flakes, looks) {
		for _, body := range f.bad {
			s := parse(body)
			if at := f.found(s, packageConstants([]source{s})[s.dir]); len(at) != 1 {
				t.Errorf("%s: seen at %v, want one place, in\n%s", f.name, at, body)
			}
		}
		for _, body := range f.ok {
			s := parse(body)
			if at := f.found(s, packageConstants([]source{s})[s.dir]); len(at) != 0 {
				t.Errorf("%s: seen at %v in\n%s", f.name, at, body)
			}
		}
	}
}
