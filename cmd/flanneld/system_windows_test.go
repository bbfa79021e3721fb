package main

import (
	"regexp"
	"testing"
)

func TestSystem(t *testing.T) {
	if id := machineID(); !regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`).MatchString(id) {
		t.Errorf("the machine's ID is %q", id)
	}
	if got := systemPath("/run/flannel/subnet.env"); got != `C:\run\flannel\subnet.env` {
		t.Error(got)
	}
}
