package main

import (
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A measurement is one number of the program.
type measurement struct {
	what  string // the key of its limit in shape_test.go
	count int
}

// measure counts what the product has, that is all but machinery. Tests are not among the sources.
func measure(all []source) []measurement {
	var product []source
	linesOf := map[bool]int{} // by isMachinery
	for _, s := range all {
		linesOf[isMachinery(s.dir)] += s.lines
		if !isMachinery(s.dir) {
			product = append(product, s)
		}
	}
	imports := importsOf(product)
	edges := 0
	for _, of := range imports {
		edges += len(of)
	}
	return []measurement{
		{"lines of the product", linesOf[false]},
		{"lines of lab, simulation, tools and release", linesOf[true]},
		{"packages of the product", len(imports)},
		{"imports among them", edges},
		{"longest path of imports", longestPath(imports)},
		{"folders in pkg", foldersIn(all, "pkg/")},
		{"interfaces asked for at run time", len(optionalInterfaces(product))},
		{"declarations named for a backoff", len(backoffs(product))},
		{"places that start a timer", timers(product)},
		{"lines of fields: daemon's node", fields(product, "daemon", "node")},
		{"lines of fields: linux.Driver", fields(product, "linux", "Driver")},
		{"lines of fields: etcd.Manager", fields(product, "etcd", "Manager")},
		{"exported names", exported(product)},
	}
}

// importsOf returns, for each package of these sources, those among them that it imports, on any operating system:
// the keys of both maps are folders.
func importsOf(sources []source) map[string]map[string]bool {
	imports := map[string]map[string]bool{}
	for _, s := range sources {
		imports[s.dir] = map[string]bool{}
	}
	for _, s := range sources {
		for _, i := range s.file.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			own, ours := strings.CutPrefix(name, "flannel/")
			if err == nil && ours && imports[own] != nil {
				imports[s.dir][own] = true
			}
		}
	}
	return imports
}

// longestPath returns the number of packages on the longest path of imports.
func longestPath(imports map[string]map[string]bool) int {
	depth := map[string]int{} // packages on the longest path from this one; 0: not computed yet
	var visit func(string) int
	visit = func(dir string) int {
		if depth[dir] == 0 {
			deepest := 0
			for to := range imports[dir] {
				deepest = max(deepest, visit(to))
			}
			depth[dir] = deepest + 1
		}
		return depth[dir]
	}
	for dir := range imports {
		visit(dir)
	}
	return slices.Max(append(slices.Collect(maps.Values(depth)), 0))
}

// foldersIn counts the folders directly below parent, such as "pkg/", that have Go files in them or below them.
func foldersIn(all []source, parent string) int {
	seen := map[string]bool{}
	for _, s := range all {
		if below, ok := strings.CutPrefix(s.dir+"/", parent); ok && below != "" {
			seen[strings.SplitN(below, "/", 2)[0]] = true
		}
	}
	return len(seen)
}

// optionalInterfaces returns the interfaces to which a value is converted at run time, v.(I) or a case of a switch by
// type: then the type of v does not say what v can do. They are found by their names, among all interfaces that these
// sources declare. An interface without a name counts once for each place, except for those that package errors asks
// errors for, such as interface{ Unwrap() []error }, because that package has no names for them.
func optionalInterfaces(sources []source) map[string]bool {
	declared, found := map[string]bool{}, map[string]bool{}
	inspect(sources, func(_ source, n ast.Node) {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if _, is := spec.Type.(*ast.InterfaceType); is {
				declared[spec.Name.Name] = true
			}
		}
	})
	ask := func(s source, t ast.Expr) { // a value is converted to t; nil in v.(type)
		switch t := t.(type) {
		case *ast.InterfaceType:
			if t.Methods.NumFields() > 0 && !ofErrors(t) {
				found[s.dir+" "+strconv.Itoa(int(t.Pos()))] = true
			}
		case *ast.Ident:
			if declared[t.Name] {
				found[t.Name] = true
			}
		case *ast.SelectorExpr:
			if declared[t.Sel.Name] {
				found[t.Sel.Name] = true
			}
		}
	}
	inspect(sources, func(s source, n ast.Node) {
		switch n := n.(type) {
		case *ast.TypeAssertExpr:
			ask(s, n.Type)
		case *ast.TypeSwitchStmt:
			for _, clause := range n.Body.List {
				for _, t := range clause.(*ast.CaseClause).List {
					ask(s, t)
				}
			}
		}
	})
	return found
}

// ofErrors reports whether an interface has a method that package errors asks errors for, and no other.
func ofErrors(t *ast.InterfaceType) bool {
	names := t.Methods.List[0].Names
	return len(t.Methods.List) == 1 && len(names) == 1 && slices.Contains([]string{"As", "Is", "Unwrap"}, names[0].Name)
}

var backoffName = regexp.MustCompile(`(?i)back-?off`)

// backoffs returns the types, functions, fields, constants and variables that are named for one.
func backoffs(sources []source) map[string]bool {
	found := map[string]bool{}
	inspect(sources, func(s source, n ast.Node) {
		var names []*ast.Ident
		switch n := n.(type) {
		case *ast.FuncDecl:
			names = append(names, n.Name)
		case *ast.TypeSpec:
			names = append(names, n.Name)
		case *ast.ValueSpec:
			names = n.Names
		case *ast.Field:
			names = n.Names
		}
		for _, name := range names {
			if backoffName.MatchString(name.Name) {
				found[s.dir+" "+name.Name] = true
			}
		}
	})
	return found
}

// timers counts the uses of the functions of package time that start a timer.
func timers(sources []source) (count int) {
	inspect(sources, func(_ source, n ast.Node) {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			from, is := sel.X.(*ast.Ident)
			if is && from.Name == "time" && slices.Contains([]string{"After", "AfterFunc", "NewTicker", "NewTimer", "Tick"}, sel.Sel.Name) {
				count++
			}
		}
	})
	return count
}

// fields returns the number of declarations of fields ("a, b int" is one) of a struct, by the names of its package
// and type.
func fields(sources []source, pkg, name string) (count int) {
	inspect(sources, func(s source, n ast.Node) {
		if spec, ok := n.(*ast.TypeSpec); ok && s.file.Name.Name == pkg && spec.Name.Name == name {
			if t, is := spec.Type.(*ast.StructType); is {
				count = len(t.Fields.List)
			}
		}
	})
	return count
}

// exported counts the exported types, functions, methods of exported types, constants and variables of packages that others
// can import.
func exported(sources []source) int {
	found := map[string]bool{}
	for _, s := range sources {
		if s.file.Name.Name == "main" {
			continue
		}
		for _, d := range s.file.Decls {
			for _, name := range exportedNames(d) {
				found[s.dir+" "+name] = true // once, though each operating system has a declaration of its own
			}
		}
	}
	return len(found)
}

// exportedNames returns the exported names that a declaration declares, those of methods as Type.Method.
func exportedNames(d ast.Decl) (names []string) {
	add := func(id *ast.Ident, before string) {
		if id.IsExported() {
			names = append(names, before+id.Name)
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			add(d.Name, "")
		} else if of := receiver(d.Recv.List[0].Type); ast.IsExported(of) {
			add(d.Name, of+".")
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				add(spec.Name, "")
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					add(id, "")
				}
			}
		}
	}
	return names
}

// receiver returns the name of the type of a method's receiver, without the pointer and type parameters.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// inspect calls f for all nodes of the syntax trees, and once with nil behind the children of each.
func inspect(sources []source, f func(source, ast.Node)) {
	for _, s := range sources {
		ast.Inspect(s.file, func(n ast.Node) bool {
			f(s, n)
			return true
		})
	}
}
