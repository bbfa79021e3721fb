package flannel_test

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// collects reports whether a loop appends to a list or text that is declared outside of it.
func collects(loop *ast.RangeStmt) (found bool) {
	var inside []string // names that the loop declares
	for _, e := range []ast.Expr{loop.Key, loop.Value} {
		if name, ok := e.(*ast.Ident); ok {
			inside = append(inside, name.Name)
		}
	}
	outside := func(e ast.Expr) bool {
		for {
			switch x := e.(type) {
			case *ast.UnaryExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.IndexExpr:
				e = x.X
			case *ast.Ident:
				return !slices.Contains(inside, x.Name)
			default:
				return false // a part of what a function returns
			}
		}
	}
	ast.Inspect(loop.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false // such as a subtest
		case *ast.ValueSpec:
			for _, name := range n.Names {
				inside = append(inside, name.Name)
			}
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if name, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
					inside = append(inside, name.Name)
				}
			}
			call, ok := n.Rhs[0].(*ast.CallExpr)
			appends := ok && n.Tok == token.ASSIGN && isNamed(call.Fun, "append")
			found = found || (appends || n.Tok == token.ADD_ASSIGN && isText(n.Rhs[0])) && outside(n.Lhs[0])
		case *ast.CallExpr:
			if print := calls(n, "fmt", "Fprint", "Fprintf", "Fprintln"); print != nil {
				found = found || outside(print.Args[0])
			}
		}
		return !found
	})
	return found
}

func isNamed(e ast.Expr, name string) bool {
	x, ok := e.(*ast.Ident)
	return ok && x.Name == name
}

// isText reports whether an expression has a string literal.
func isText(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Kind == token.STRING
	case *ast.BinaryExpr:
		return isText(e.X) || isText(e.Y)
	}
	return false
}

// inMapOrder reports whether a loop is over a map, as far as its function shows, which sorts nothing.
func (s source) inMapOrder(loop *ast.RangeStmt) bool {
	i := slices.IndexFunc(s.file.Decls, func(d ast.Decl) bool { return d.Pos() <= loop.Pos() && loop.End() <= d.End() })
	overMap, sorts := isMap(loop.X), false
	ast.Inspect(s.file.Decls[i], func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			name, named := loop.X.(*ast.Ident)
			for i, left := range n.Lhs {
				overMap = overMap || named && isNamed(left, name.Name) && len(n.Rhs) == len(n.Lhs) && isMap(n.Rhs[i])
			}
		case *ast.CallExpr:
			f, ok := n.Fun.(*ast.SelectorExpr)
			sorts = sorts || ok && strings.HasPrefix(f.Sel.Name, "Sort")
		}
		return true
	})
	return overMap && !sorts
}

// isMap reports whether an expression makes a map.
func isMap(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		_, ok := e.Type.(*ast.MapType)
		return ok
	case *ast.CallExpr:
		if isNamed(e.Fun, "make") {
			_, ok := e.Args[0].(*ast.MapType)
			return ok
		}
	}
	return false
}
