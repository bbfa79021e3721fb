package dist_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

type stage struct {
	Name, Base, Platform string
	Commands             []struct{ Name, Text string }
}

func (s stage) all(command string) (texts []string) {
	for _, c := range s.Commands {
		if c.Name == command {
			texts = append(texts, c.Text)
		}
	}
	return texts
}

func parseStages(t *testing.T, text string) (all []stage) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// fetches reports whether a command downloads anything but packages and modules, which have checksums.
func fetches(command string) bool {
	return regexp.MustCompile(`https?://|\b(curl|wget|git)\b`).MatchString(command)
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func find(t *testing.T, text, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("there is no %s", pattern)
	}
	return m[1]
}

// Tests run without a container engine, so BuildKit's parser and checks read the Dockerfile, and versions and paths are
// compared with those of the Makefile and the manifest.
func TestDockerfile(t *testing.T) {
	out, err := render(t, "dockerfile", "Dockerfile")
	if err != nil {
		t.Fatal(out)
	}
	stages := parseStages(t, out)
	if len(stages) != 2 || stages[0].Platform != "$BUILDPLATFORM" {
		t.Fatalf("want a stage that runs on the builder's platform, and the image: %+v", stages)
	}
	text := read(t, "Dockerfile")
	for _, arg := range stages[0].all("ARG") {
		if regexp.MustCompile(`TARGET[A-Z]+=`).MatchString(arg) {
			t.Errorf("%s: the default overrides the target platform", arg)
		}
	}
	if at, mod := find(t, text, `ARG GO=([0-9.]+)`), find(t, read(t, "..", "go.mod"), `(?m)^go ([0-9]+\.[0-9]+)`); at != mod {
		t.Errorf("Go %s, but go.mod wants %s", at, mod)
	}
	if builds := strings.Join(stages[0].all("RUN"), "\n"); !strings.Contains(builds, "./cmd/$name") || strings.Contains(builds, "go install") {
		t.Errorf("the image has another CNI plugin than ours: %s", builds)
	}
	for _, s := range stages {
		for _, c := range slices.Concat(s.all("RUN"), s.all("ADD")) {
			if fetches(c) {
				t.Errorf("it downloads more than packages and modules: %s", c)
			}
		}
	}
	// The manifest uses the image's paths.
	for _, path := range []string{"/opt/bin/flanneld", "/opt/flannel/cni/flannel"} {
		if !strings.Contains(strings.Join(stages[1].all("COPY"), "\n"), path) || !strings.Contains(manifest(t), path) {
			t.Errorf("%s is not in both the image and the manifest", path)
		}
	}
}
