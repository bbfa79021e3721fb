// Package render is a program that prints what Helm and kustomize would send to a
// cluster, and the stages of a Dockerfile. It also installs, upgrades and removes a
// release of the chart as Helm does, in a cluster that its caller has started. It is
// for reading the output of the chart without Helm, and for tests: those of package
// dist start bin/render for each step.
//
// It is one of the programs in bin/kube, because it needs the same libraries as
// Kubernetes: bin/render is a link to bin/kube.
package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const usage = `usage: render chart DIRECTORY [VALUES.yaml]   (in namespace kube-flannel)
       render install|upgrade|upgrade-reusing-values KUBECONFIG DIRECTORY VALUES.yaml
       render rollback|uninstall KUBECONFIG
       render kustomization DIRECTORY
       render dockerfile FILE`

// Main runs the program with the arguments in os.Args and returns its exit status: 0, or
// 1 after an error. main of bin/kube calls it when the program was started as bin/render.
func Main() int {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		return 1
	}
	return 0
}

// run carries out one command. It writes to w what the program prints.
func run(args []string, w io.Writer) error {
	switch {
	case len(args) == 2 && args[0] == "chart":
		return chart(w, args[1], "") // with the chart's own values
	case len(args) == 3 && args[0] == "chart":
		return chart(w, args[1], args[2])
	case len(args) == 4 && args[0] == "install":
		return install(w, args[1], args[2], args[3])
	case len(args) == 4 && args[0] == "upgrade":
		return upgrade(w, args[1], args[2], args[3], false) // without --reuse-values
	case len(args) == 4 && args[0] == "upgrade-reusing-values":
		return upgrade(w, args[1], args[2], args[3], true) // with it
	case len(args) == 2 && args[0] == "rollback":
		return rollback(args[1])
	case len(args) == 2 && args[0] == "uninstall":
		return uninstall(args[1])
	case len(args) == 2 && args[0] == "kustomization":
		return kustomization(w, args[1])
	case len(args) == 2 && args[0] == "dockerfile":
		return dockerfile(w, args[1])
	}
	return errors.New(usage)
}

// chart does what `helm template` does. There is no cluster, so the chart sees the
// default capabilities of this version of Helm: the versions of Kubernetes and of its APIs.
// valuesFile is like that of --values; "" means none.
func chart(w io.Writer, dir, valuesFile string) error {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return err
	}
	values, err := readValues(valuesFile)
	if err != nil {
		return err
	}
	release := chartutil.ReleaseOptions{Name: "flannel", Namespace: "kube-flannel", Revision: 1, IsInstall: true}
	// What templates see: .Values, which have the chart's defaults, too, .Release and so on.
	all, err := chartutil.ToRenderValues(c, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return err
	}
	// Strict: a value that the chart uses and that does not exist is an error.
	files, err := engine.Engine{Strict: true}.Render(c, all) // text by the path of its template
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := strings.TrimSpace(files[name])
		if strings.HasSuffix(name, "NOTES.txt") { // print it as comments, so that the manifest stays valid
			text = "# " + strings.ReplaceAll(text, "\n", "\n# ")
		}
		if text != "" {
			if _, err := fmt.Fprintf(w, "---\n# %s\n%s\n", name, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// kustomization does what `kubectl kustomize` does.
func kustomization(w io.Writer, dir string) error {
	out, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return err
	}
	text, err := out.AsYaml()
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// stage is one FROM of a Dockerfile: "FROM --platform=PLATFORM BASE AS NAME".
type stage struct {
	Name, Base, Platform string
	Commands             []command
}

// command is an instruction of a stage: {"RUN", "RUN apt-get update"}.
type command struct {
	Name string // such as RUN
	Text string
}

// dockerfile prints the stages of a Dockerfile as JSON, so that a test can check them. It
// fails if BuildKit, whose parser it uses, refuses the file or warns of a mistake:
//
//	[{"Name":"build","Base":"golang","Platform":"","Commands":[{"Name":"RUN","Text":"…"}]}]
func dockerfile(w io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	tree, err := parser.Parse(f)
	if err != nil {
		return err
	}
	var complaints []error
	// BuildKit only warns of most mistakes; here they are errors. Parse calls this function.
	complain := func(rule, description, url, text string, where []parser.Range) {
		complaints = append(complaints, fmt.Errorf("%s: %s", rule, text))
	}
	stages, _, err := instructions.Parse(tree.AST, linter.New(&linter.Config{Warn: complain}))
	if err = errors.Join(append(complaints, err)...); err != nil {
		return err
	}
	var out []stage
	for _, s := range stages {
		o := stage{Name: s.Name, Base: s.BaseName, Platform: s.Platform}
		for _, c := range s.Commands {
			o.Commands = append(o.Commands, command{strings.ToUpper(c.Name()), fmt.Sprint(c)})
		}
		out = append(out, o)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}
