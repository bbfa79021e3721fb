package kube

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestClip cuts a long text of wide characters at every place within one.
func TestClip(t *testing.T) {
	for ahead := range 4 {
		for _, wide := range []string{"ä", "…", "😀"} {
			text := strings.Repeat("a", ahead) + strings.Repeat(wide, 300)
			got := clip(text)
			kept, ended := strings.CutSuffix(got, "…")
			if len(got) > 500 || len(got) < 490 || !utf8.ValidString(got) || !ended || !strings.HasPrefix(text, kept) {
				t.Errorf("%d before %s: %d bytes, …%q", ahead, wide, len(got), got[len(got)-12:])
			}
		}
	}
	if whole := strings.Repeat("ä", 250); clip(whole) != whole {
		t.Error("a text that fits is cut")
	}
}

// What others write into annotations is logged once each, and not remembered without end.
func TestWarnedIsBounded(t *testing.T) {
	var w warned
	for i := range 10 * maxWarned {
		if text := fmt.Sprint("annotation ", i); !w.add(text) || w.add(text) {
			t.Fatalf("%s is not new once", text)
		}
		if len(w) > maxWarned {
			t.Fatalf("%d texts are remembered", len(w))
		}
	}
}
