// Command flannel-shape counts what makes the program large: packages and their imports, exported names, interfaces that
// are asked for at run time, timers, fields of the largest types. Its test holds a limit for each. With -surface it
// prints what users and other programs may depend on: metrics, codes of the doctor, keys of JSON, names in
// Kubernetes, variables of the environment, and compares that with testdata/surface.txt in its test. It must run at
// the top of the repository.
//
//	flannel-shape [-surface]
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	surface := flag.Bool("surface", false, "print what users and other programs may depend on")
	flag.Parse()
	all, err := readSources(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "flannel-shape:", err)
		os.Exit(1)
	}
	if *surface {
		fmt.Print(surfaceOf(all))
		return
	}
	for _, m := range measure(all) {
		fmt.Printf("%-44s %6d\n", m.what, m.count)
	}
}

// A source is one Go file that is no test.
type source struct {
	dir   string // below the top of the repository; "." for the top itself
	lines int    // with comments and blank lines
	file  *ast.File
}

// readSources reads all Go files below root, those of other modules too, but no tests.
func readSources(root string) (all []source, err error) {
	fset := token.NewFileSet()
	err = filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (name != root && strings.HasPrefix(e.Name(), ".") || e.Name() == "bin" || e.Name() == "testdata"):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		all = append(all, source{filepath.ToSlash(dir), fset.File(file.Pos()).LineCount(), file})
		return nil
	})
	return all, err
}

// machinery are the folders of what builds, tests and shows the product. All others are the product.
var machinery = []string{"cmd/flannel-lab", "cmd/flannel-release", "cmd/flannel-tests", "cmd/flannel-shape", "dist", "internal/test"}

// isMachinery reports whether a folder is one of machinery or below one.
func isMachinery(dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if slices.Contains(machinery, dir) {
			return true
		}
	}
	return false
}
