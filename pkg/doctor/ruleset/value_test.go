package ruleset

import "testing"

// A device that is not known matches the pattern of all devices, and maybe others.
func TestAnyDevice(t *testing.T) {
	for pattern, want := range map[string]answer{"*": yes, "eth*": some, "eth0": some} {
		if got := parseWord(devices, pattern).matches(field{has: yes, device: AnyDevice, isDevice: true}); got != want {
			t.Errorf("%s: %d, want %d", pattern, got, want)
		}
	}
}
