package main

import "testing"

func TestSystem(t *testing.T) {
	if got := systemPath("/run/flannel/subnet.env"); got != `C:\run\flannel\subnet.env` {
		t.Error(got)
	}
}
