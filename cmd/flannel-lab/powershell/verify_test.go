package powershell_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/powershell"
	"flannel/dist/windows/check"
	"flannel/internal/test/nettest"
)

// verify.ps1 runs these commands of flanneld.exe, whatever their status, and each phase ends with a bundle. A phase that
// has run is not run again, because its answers would be lost.
func TestVerify(t *testing.T) {
	windows := filepath.Join("..", "..", "..", "dist", "windows")
	all, err := check.Parse(nettest.Tool(t, "powershell/parse.mjs"), filepath.Join(windows, "verify.ps1"), filepath.Join(windows, "flannel.psm1"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "Documentation", "windows-verify.md"))
	if err != nil {
		t.Fatal(err)
	}
	prepare := "--iface=Ethernet prepare --json --network-mode=overlay"
	for phase, want := range map[string][]string{"look": nil, "prepare": {prepare}, "again": {prepare}, "reboot": {prepare},
		"node": {"status --json", "source-vip --json", "cni-dirs --json"}, "settle": {"cleanup", "prepare --json --network-mode=overlay"}, "cleanup": {"cleanup"}} {
		if !strings.Contains(string(page), "verify.ps1 -Phase "+phase+"\n") {
			t.Errorf("windows-verify.md does not run the phase %s", phase)
		}
		var calls []string
		exists := map[string]bool{`C:\k\flanneld.exe`: true}
		sh := powershell.NewShell(all[1:]...)
		sh.Set("PSScriptRoot", `C:\k`)
		nothing := func([]any) (any, error) { return nil, nil }
		sh.Commands = map[string]func([]any) (any, error){"Assert-Administrator": nothing, "Write-Step": nothing, "New-Item": nothing,
			"Start-Transcript": nothing, "Stop-Transcript": nothing,
			"Get-FullPath": func(args []any) (any, error) { return args[0], nil },
			"Test-Path":    func(args []any) (any, error) { return exists[powershell.Texts(args...)[1]], nil },
			"Invoke-Flanneld": func(args []any) (any, error) {
				words := powershell.Texts(args[1])
				calls = append(calls, strings.Join(words, " "))
				if _, bundle, ok := strings.Cut(words[len(words)-1], "--bundle="); ok {
					exists[bundle] = true
				}
				return 1, nil
			}}
		parameters := map[string]any{"Phase": phase, "InterfaceName": "Ethernet"}
		if err := sh.Run(all[0], parameters); err != nil {
			t.Errorf("%s: %v", phase, err)
		}
		want = append(append([]string{"version"}, want...), `--kube-subnet-mgr doctor --bundle=C:\flannel-verify\`+phase+".tar.gz")
		if !slices.Equal(calls, want) {
			t.Errorf("%s runs %q, want %q", phase, calls, want)
		}
		if err := sh.Run(all[0], parameters); err == nil || len(calls) != len(want) {
			t.Errorf("%s was run again: %v, %q", phase, err, calls)
		}
	}
}
