package probe

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// windowsWith returns a lister for Windows whose programs are shell scripts: what Wine lacks. Other programs are missing.
func windowsWith(t *testing.T, scripts map[string]string) lister {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return lister{"windows", func(name string) string { return filepath.Join(dir, name) }}
}

// In the form of vfpctrl's own output (microsoft/SDN's collectlogs.ps1 reads it, too).
const portsScript = `case "$*" in
/list-vmswitch-port) i=0; echo " ITEM LIST"; while [ $i -lt %d ]; do
	printf '\r\n  Port name             : 4FD72AB0-2C35-4AE7-AC9A-%%012d\r\n  Port Friendly name    : Container NIC 6c50381c\r\n  Switch name           : 04F2CC76-AE71-4E04-9B0B-D3F27D8BC4E3\r\n' $i; i=$((i+1)); done;;
"/port 4FD72AB0-"*" /list-rule") echo "GROUP : for $2"; %s;;
*) exit 7;;
esac`

func (l lister) list(ctx context.Context) map[string]string {
	files, text := map[string][]byte{}, map[string]string{}
	l.runAll(ctx, files)
	for name, raw := range files {
		text[strings.TrimPrefix(name, "listings/")] = string(raw)
	}
	return text
}

// What is asked of Windows, and that a missing program is said, whatever the language.
func TestListingsOfWindows(t *testing.T) {
	echo := `echo "$0 $*"`
	all := windowsWith(t, map[string]string{"hnsdiag": echo, "wevtutil": echo, "route": echo, "ipconfig": echo,
		"vfpctrl": fmt.Sprintf(portsScript, 3, ":")}).list(t.Context())
	for name, want := range map[string]string{"hnsdiag.txt": "hnsdiag list all -d", "routes.txt": "route print", "ipconfig.txt": "ipconfig /all",
		"hns-events.txt": "wevtutil qe Microsoft-Windows-Host-Network-Service-Admin /c:200 /rd:true /f:text",
		"vfp.txt":        "for 4FD72AB0-2C35-4AE7-AC9A-000000000002", "processes.txt": "tasklist: "} {
		if !strings.Contains(all[name], want) {
			t.Errorf("%s: %q", name, all[name])
		}
	}
	if n := strings.Count(all["vfp.txt"], "GROUP : for"); n != 3 {
		t.Errorf("rules of %d ports: %s", n, all["vfp.txt"])
	}
	none := windowsWith(t, nil).list(t.Context())
	for name, command := range listings("windows") {
		if !strings.Contains(none[name], command[0]) {
			t.Errorf("%s says nothing of the missing program: %q", name, none[name])
		}
	}
	if !strings.Contains(none["vfp.txt"], "vfpctrl") || len(none) != len(listings("windows"))+1 {
		t.Errorf("%d files, %q", len(none), none["vfp.txt"])
	}
}

func TestListingsAreBounded(t *testing.T) {
	l := windowsWith(t, map[string]string{"hnsdiag": "yes 'a line'", "vfpctrl": fmt.Sprintf(portsScript, maxPorts+1, ":")})
	if text := string(l.run(t.Context(), 1000, "hnsdiag")); len(text) > 1100 || !strings.Contains(text, "a line\ntruncated\n") {
		t.Errorf("%d bytes: %q", len(text), text)
	}
	if text := string(l.ports(t.Context())); strings.Count(text, "GROUP : for") != maxPorts {
		t.Errorf("rules of %d ports", strings.Count(text, "GROUP : for"))
	}
	l = windowsWith(t, map[string]string{"vfpctrl": fmt.Sprintf(portsScript, 9, "head -c 5000000 /dev/zero | tr '\\0' '\\n'")})
	if text := l.ports(t.Context()); len(text) > maxListing+1000 || strings.Count(string(text), "GROUP : for") != 2 {
		t.Errorf("%d bytes, rules of %d ports", len(text), strings.Count(string(text), "GROUP : for"))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if text := string(l.ports(ended)); text == "" || strings.Contains(text, "GROUP") {
		t.Errorf("after the end: %q", text)
	}
}

// Nothing of a port's name but a GUID gets into a command line.
func TestPortName(t *testing.T) {
	for text, want := range map[string]int{"Port name : 4FD72AB0-2C35-4AE7-AC9A-000000000002": 1, "Port name : x /drop-all": 0,
		"Port Friendly name : 4FD72AB0-2C35-4AE7-AC9A-000000000002": 0, "Port name : 4FD72AB0-2C35-4AE7-AC9A-000000000002 /x": 0} {
		if got := len(portName.FindAllString(text, -1)); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}

// On this system, listings use what there is.
func TestListingsHere(t *testing.T) {
	files := map[string][]byte{}
	lister{runtime.GOOS, program}.runAll(t.Context(), files)
	if len(files) != len(listings(runtime.GOOS)) || !strings.Contains(string(files["listings/links.txt"]), "lo:") {
		t.Errorf("%d files, links: %s", len(files), files["listings/links.txt"])
	}
}
