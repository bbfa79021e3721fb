package linux

import (
	"regexp"
	"testing"

	"flannel/internal/test/nstest"
)

// The error of a wireguard-go that fails does not contain when it failed: an error that
// is the same as before is not logged again.
func TestWireGuardGoFails(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, "ip link add taken type bridge")
		err := startWireGuardGo("taken")
		if err == nil {
			t.Fatal("wireguard-go has made a device whose name is taken")
		}
		t.Log(err)
		if clock := regexp.MustCompile(`\d:\d\d:\d\d`); clock.MatchString(err.Error()) {
			t.Errorf("the error contains a time: %v", err)
		}
	})
}
