package flannel_test

import (
	"go/ast"
	"go/types"
	"slices"
	"strconv"
	"strings"
	"testing"

	"flannel/pkg/conf"
)

// plain are the types that a secret may not have: fmt, slog and encoding/json print them.
var plain = []string{"string", "[]byte", "*string", "[]string", "[32]byte", "[8]byte"}

// printers are packages whose functions return or log a text that has their arguments in it, or a digest of them.
var printers = []string{"fmt", "errors", "slog", "sha256", "sha512", "sha1", "md5", "hmac", "fnv", "crc32"}

// logMethods are those of loggers, whatever the logger is named.
var logMethods = []string{
	"Debug", "Info", "Warn", "Error", "Log", "LogAttrs", "With", "DebugContext", "InfoContext", "WarnContext", "ErrorContext",
}

// A field, parameter or declared variable with the name of a secret is a conf.Secret, which fmt, slog and encoding/json never
// print. No assignment is name = x.Reveal() or name := x.Reveal(), and what Reveal returns is neither logged nor part of an
// error or a digest.
func TestSecretsAreOfTheirType(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !within(s.dir, "backend", "pkg", "subnet", "cmd/flanneld", "cmd/flannel") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				s.checkType(t, n.Names, n.Type)
			case *ast.ValueSpec:
				if n.Type != nil {
					s.checkType(t, n.Names, n.Type)
				}
			case *ast.AssignStmt:
				s.checkVariables(t, n)
			case *ast.CallExpr:
				s.checkCall(t, n)
			}
			return true
		})
	}
}

// checkType checks that none of the names is one of a secret, if they have a plain type.
func (s source) checkType(t *testing.T, names []*ast.Ident, kind ast.Expr) {
	for _, n := range names {
		if text := types.ExprString(kind); conf.IsSecret(n.Name) && slices.Contains(plain, text) {
			t.Errorf("%s: %s is a %s; make it a conf.Secret", s.fset.Position(n.Pos()), n.Name, text)
		}
	}
}

// checkVariables checks that no assignment is name = x.Reveal() or name := x.Reveal(): checkCall would not find that the name
// is printed.
func (s source) checkVariables(t *testing.T, assigned *ast.AssignStmt) {
	for i, value := range assigned.Rhs {
		if text := types.ExprString(value); strings.HasSuffix(text, ".Reveal()") {
			if to, ok := assigned.Lhs[i].(*ast.Ident); ok {
				t.Errorf("%s: %s gets %s; leave it a conf.Secret", s.fset.Position(to.Pos()), to.Name, text)
			}
		}
	}
}

// checkCall checks that a call reads no secret as a string, and shows none.
func (s source) checkCall(t *testing.T, call *ast.CallExpr) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return
	}
	if key, ok := call.Args[0].(*ast.BasicLit); ok && f.Sel.Name == "String" {
		if text, err := strconv.Unquote(key.Value); err == nil && conf.IsSecret(text) {
			t.Errorf("%s: %s is read as a string; use Secret", s.fset.Position(call.Pos()), text)
		}
	}
	of, _ := f.X.(*ast.Ident)
	shows := slices.Contains(logMethods, f.Sel.Name) || of != nil && slices.Contains(printers, of.Name)
	// The name of a wire has four bytes of a SHA-256 of the key with a prefix, so that nodes roll out another key. They must stay
	// the same in all versions, which roll it out together, and do not help to guess a key of 256 random bits.
	if !shows || s.dir == "backend" && of != nil && of.Name == "sha256" {
		return
	}
	for _, arg := range call.Args {
		if text := types.ExprString(arg); strings.Contains(text, ".Reveal()") {
			t.Errorf("%s: %s gets %s", s.fset.Position(call.Pos()), types.ExprString(f), text)
		}
	}
}
