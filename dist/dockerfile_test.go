package dist_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
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

// parseStages reads what BuildKit's parser printed: tests run without a container engine.
func parseStages(t *testing.T, text string) (all []stage) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	return all
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
