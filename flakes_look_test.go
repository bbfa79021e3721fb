package flannel_test

import (
	"go/ast"
	"go/token"
	"slices"
)

// looks are kinds of flakes of tests that look once at what another process does: it may do that after any of the
// events that the test has waited for.
var looks = []flake{{
	name: "look",
	find: func(s source, n ast.Node, _ map[string]ast.Expr) bool { return !s.explained(n) && looksOnce(n) },
	advice: "wait for it by within; if it was there before what the test has waited for, or must never be there, " +
		"a comment on the line says so",
	bad: []string{`must(t, has(t, n, "flanneld_peers 1"))`, `must(t, errors.Join(ready(t, a), ready(t, b)))`},
	ok: []string{`within(t, "it is", func() error { return has(t, n, "flanneld_peers 1") })`,
		`must(t, silent(t, n, "10.5.", "ip", "route")) // cleanup has ended`},
}, {
	name: "log",
	find: func(s source, n ast.Node, _ map[string]ast.Expr) bool {
		check, ok := n.(*ast.IfStmt)
		return ok && !s.explained(n) && missesRecord(check)
	},
	advice: "a line of the log comes after what it tells: wait for it by logged or once",
	bad: []string{"if len(n.Records(0).With(`cause=x`)) == 0 {\n\tt.Error(1)\n}",
		"if found := n.Records(mark).With(`cause=x`); len(found) != 1 {\n\tt.Error(1)\n}"},
	ok: []string{"if len(n.Records(0).With(`cause=x`)) > 0 {\n\tt.Error(1)\n}", "logged(t, n, 0, `cause=x`)",
		"within(t, `x`, func() error {\n\tif len(n.Records(0)) == 0 {\n\t\treturn errors.New(`no`)\n\t}\n\treturn nil\n})"},
}, {
	name: "give up",
	find: func(s source, n ast.Node, _ map[string]ast.Expr) bool {
		call, ok := n.(*ast.CallExpr)
		return ok && s.givesUp(call)
	},
	advice: "this ends the wait at the first look: return an error; if the state cannot become right any more, a comment on the line says so",
	bad:    []string{"within(t, `it is`, func() error {\n\tif bad() {\n\t\tt.Fatal(1)\n\t}\n\treturn nil\n})"},
	ok: []string{"within(t, `it is`, func() error {\n\tif bad() {\n\t\tt.Fatal(1) // nothing mends it\n\t}\n\treturn nil\n})",
		"go func() { t.Error(1) }()"},
}, {
	name: "start",
	find: func(s source, n ast.Node, _ map[string]ast.Expr) bool { return !s.explained(n) && sinceStart(n) },
	advice: "a node on a busy machine may have had reason to log it since its start: take a mark when all nodes know each other, " +
		"or a comment on the line says why nothing that is late causes it",
	bad: []string{"once(t, n, 0, `cause=x`)", "noAlarm(t, l, map[*lab.Node]int{})", "if len(n.Records(0).With(`cause=x`)) > 0 {\n\tt.Error(1)\n}",
		"if found := n.Records(0).With(`cause=x`); len(found) != 0 {\n\tt.Error(1)\n}"},
	ok: []string{"once(t, n, mark, `cause=x`)", "once(t, n, 0, `cause=x`) // the flag decides", "noAlarm(t, l, marks)",
		"if len(n.Records(mark).With(`cause=x`)) > 0 {\n\tt.Error(1)\n}", "if len(n.Records(0).With(`cause=x`)) > 0 {\n\tearly++\n}"},
}}

// looksOnce reports whether a node is must with a check of the state of a node of the lab.
func looksOnce(n ast.Node) (found bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || !isNamed(call.Fun, "must") {
		return false
	}
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			check, ok := n.(*ast.CallExpr)
			found = found || ok && slices.ContainsFunc([]string{"has", "says", "silent", "ready", "unready", "hasRoute", "atAddress", "checkSynced", "conflictShown"},
				func(name string) bool { return isNamed(check.Fun, name) })
			return !found
		})
	}
	return found
}

// missesRecord reports whether a statement fails the test when records of a log are missing.
func missesRecord(check *ast.IfStmt) bool {
	reads, compares := false, false
	for _, part := range []ast.Node{check.Init, check.Cond} {
		if part == ast.Node((ast.Stmt)(nil)) {
			continue
		}
		ast.Inspect(part, func(n ast.Node) bool {
			reads = reads || n != nil && calls(n, "", "Records") != nil
			if b, ok := n.(*ast.BinaryExpr); ok && slices.Contains([]token.Token{token.EQL, token.NEQ, token.LSS}, b.Op) {
				number, ok := b.Y.(*ast.BasicLit)
				compares = compares || ok && number.Kind == token.INT && !(b.Op == token.NEQ && number.Value == "0")
			}
			return true
		})
	}
	return reads && compares && failsTest(check.Body)
}

// sinceStart reports whether a node fails the test because of what a flanneld has logged at any time since its start.
func sinceStart(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		if len(n.Args) < 3 {
			return false
		}
		marks, isLiteral := n.Args[2].(*ast.CompositeLit)
		return isNamed(n.Fun, "once") && isZero(n.Args[2]) || isNamed(n.Fun, "noAlarm") && isLiteral && len(marks.Elts) == 0
	case *ast.IfStmt:
		reads, compares := false, false
		for _, part := range []ast.Node{n.Init, n.Cond} {
			if part == ast.Node((ast.Stmt)(nil)) {
				continue
			}
			ast.Inspect(part, func(n ast.Node) bool {
				call := calls(n, "", "Records")
				reads = reads || call != nil && len(call.Args) == 1 && isZero(call.Args[0])
				b, ok := n.(*ast.BinaryExpr)
				compares = compares || ok && (b.Op == token.GTR || b.Op == token.NEQ) && isZero(b.Y)
				return true
			})
		}
		return reads && compares && failsTest(n.Body)
	}
	return false
}

// isZero reports whether an expression is the number 0.
func isZero(e ast.Expr) bool {
	number, ok := e.(*ast.BasicLit)
	return ok && number.Kind == token.INT && number.Value == "0"
}

// failsTest reports whether statements call t.Error and the like.
func failsTest(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		found = found || n != nil && calls(n, "t", "Fatal", "Fatalf", "Error", "Errorf") != nil
		return !found
	})
	return found
}

// givesUp reports whether a call waits, and its function ends the test.
func (s source) givesUp(wait *ast.CallExpr) (found bool) {
	name := wait.Fun
	if f, ok := name.(*ast.SelectorExpr); ok {
		name = f.Sel
	}
	if !slices.ContainsFunc([]string{"within", "withinOf", "Until", "eventually"}, func(wait string) bool { return isNamed(name, wait) }) {
		return false
	}
	for _, arg := range wait.Args {
		if f, ok := arg.(*ast.FuncLit); ok {
			ast.Inspect(f, func(n ast.Node) bool {
				found = found || n != nil && calls(n, "t", "Fatal", "Fatalf") != nil && !s.explained(n)
				return !found
			})
		}
	}
	return found
}
