package kube

import (
	"fmt"
	"strings"
	"testing"
)

// Many names are split into selectors of a bounded length.
func TestHostnameSelectors(t *testing.T) {
	long := map[string]*storedNode{}
	for i := range 300 {
		name := fmt.Sprintf("%060d", i)
		long[name] = &storedNode{Name: name, Hostname: name}
	}
	long["never seen"] = nil // it is read by its name
	selected := 0
	for _, s := range hostnameSelectors(long) {
		if selected += strings.Count(s, ",") + 1; len(s) > maxSelector+100 {
			t.Errorf("a selector of %d bytes", len(s))
		}
	}
	if selected != len(long)-1 {
		t.Errorf("%d of %d names are selected", selected, len(long)-1)
	}
}
