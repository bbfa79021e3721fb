package main

import (
	"go/ast"
	"go/token"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A kind of names that are recognized by their form, in texts (string literals) of the product.
type kind struct {
	name  string            // the first word of the lines in testdata/surface.txt
	where func(source) bool // reports whether a file is searched
	form  *regexp.Regexp
}

var kinds = []kind{
	{"annotation", func(s source) bool { return strings.Contains(s.dir, "kube") }, regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)},
	{"code", anywhere, regexp.MustCompile(`\bFL[0-9]{3}\b`)},
	{"environment", anywhere, regexp.MustCompile(`^(?:FLANNELD?|ETCDCTL|KUBE|KUBERNETES|CNI|NODE|POD)_[A-Z0-9_]+$`)},
	{"kubernetes", anywhere, regexp.MustCompile(`^flannel[a-z.]*/[a-zA-Z0-9-]*$|^Flannel[A-Z][A-Za-z]+$`)},
	// Labels of metrics, too.
	{"metric", usesPrometheus, regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)},
}

func anywhere(source) bool { return true }

func usesPrometheus(s source) bool {
	return slices.ContainsFunc(s.file.Imports, func(i *ast.ImportSpec) bool {
		return strings.HasPrefix(i.Path.Value, `"github.com/prometheus/client_golang/`)
	})
}

// surfaceOf lists, in lines of kind and name, what users and other programs may depend on, sorted. Flags and commands are
// in cmd/flanneld/testdata/help.txt.
func surfaceOf(all []source) string {
	lines := map[string]bool{}
	inspect(all, func(s source, n ast.Node) {
		if isMachinery(s.dir) {
			return
		}
		switch n := n.(type) {
		case *ast.BasicLit:
			text, err := strconv.Unquote(n.Value)
			if err != nil || n.Kind != token.STRING { // a number or a character
				return
			}
			for _, k := range kinds {
				if k.where(s) {
					for _, name := range k.form.FindAllString(text, -1) {
						lines[k.name+" "+name] = true
					}
				}
			}
		case *ast.Field:
			if name := jsonKey(n); name != "" {
				lines["json "+name] = true
			}
		case *ast.ValueSpec: // causeX = "x": causes in the log, named so by convention
			for i, id := range n.Names {
				if strings.HasPrefix(strings.ToLower(id.Name), "cause") && i < len(n.Values) {
					if lit, ok := n.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
						lines["cause "+strings.Trim(lit.Value, "`\"")] = true
					}
				}
			}
		}
	})
	return strings.Join(slices.Sorted(maps.Keys(lines)), "\n") + "\n"
}

// jsonKey returns the key of a field in JSON that its tag names, or "".
func jsonKey(f *ast.Field) string {
	if f.Tag == nil {
		return ""
	}
	tag, err := strconv.Unquote(f.Tag.Value)
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
	return strings.TrimPrefix(name, "-") // "-": not in JSON
}
