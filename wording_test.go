package flannel_test

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sentence is what tests must not look for in a text: three words of prose. Names and values are no prose.
var sentence = regexp.MustCompile(`(^|[^\w./-])[a-z']{2,}[,;:]? [a-z']+[,;:]? [a-z']{2,}($|[^\w./-])`)

// searching are the functions that look for a text in another. Of those that are no method, the package is strings.
var searching = []string{"Contains", "ContainsAny", "Count", "HasPrefix", "HasSuffix", "Index", "Cut", "Names", "Naming", "Lines", "With",
	"logged", "loggedNaming", "once", "says", "silent", "unready"}

// foreign are no messages but output of other programs.
var foreign = []string{"table ip flannel-ipv4", "table inet mine"}

// Messages can be reworded without a test failing: see "Rules for tests" in Documentation/testing.md.
func TestNoSentencesInAssertions(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test || s.dir == "internal/test/logtest" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if slices.Contains(searching, calledName(n)) {
					for _, arg := range n.Args {
						refuseSentence(t, s, arg)
					}
				}
			case *ast.BinaryExpr: // err.Error() == "…"
				if (n.Op == token.EQL || n.Op == token.NEQ) && isErrorText(n.X) {
					refuseSentence(t, s, n.Y)
				}
			}
			return true
		})
	}
}

func calledName(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}

func isErrorText(e ast.Expr) bool {
	c, ok := e.(*ast.CallExpr)
	return ok && len(c.Args) == 0 && calledName(c) == "Error"
}

func refuseSentence(t *testing.T, s source, e ast.Expr) {
	ast.Inspect(e, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok { // what a command is made of is no text to look for
			return calledName(c) == "Sprintf"
		}
		l, ok := n.(*ast.BasicLit)
		if !ok || l.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(l.Value)
		if err == nil && sentence.MatchString(text) && !slices.ContainsFunc(foreign, func(f string) bool { return strings.Contains(text, f) }) {
			t.Errorf("%s: %q is a sentence; assert on a cause, a typed error, or names and values", s.fset.Position(l.Pos()), text)
		}
		return true
	})
}
