package main

import (
	"strings"
	"testing"
)

func TestDebianPackage(t *testing.T) {
	deb := pathOf(t, "flanneld_9.8.7-1_amd64.deb")
	fields := output(t, "dpkg-deb", "-f", deb)
	for _, want := range []string{"Package: flanneld\n", "Version: 9.8.7-1\n", "Architecture: amd64\n", "Recommends: iptables\n"} {
		if !strings.Contains(fields, want) {
			t.Errorf("the fields lack %q:\n%s", want, fields)
		}
	}
	if files := output(t, "dpkg-deb", "--ctrl-tarfile", deb); !strings.Contains(files, "/etc/default/flanneld") {
		t.Error("/etc/default/flanneld is not a configuration file")
	}
	unit := output(t, "sh", "-c", "dpkg-deb --fsys-tarfile "+deb+" | tar -xO ./usr/lib/systemd/system/flanneld.service")
	if !strings.Contains(unit, " /etc/default/flanneld\nExecStart=/usr/bin/flanneld\n") {
		t.Errorf("the unit starts another program, or without its condition:\n%s", unit)
	}
}

func TestRPM(t *testing.T) {
	rpm := pathOf(t, "flanneld-9.8.7-1.x86_64.rpm")
	out := output(t, "rpm", "-qp", "--qf", "%{NAME} %{VERSION} %{ARCH} %{LICENSE}\n", "--scripts", rpm)
	for _, want := range []string{"flanneld 9.8.7 x86_64 Apache-2.0\n", "systemctl daemon-reload"} {
		if !strings.Contains(out, want) {
			t.Errorf("rpm does not say %q:\n%s", want, out)
		}
	}
	// Flag 17 is %config(noreplace). Programs are static, so that no library is required.
	for query, want := range map[string]string{
		"[%{FILENAMES} %{FILEFLAGS} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILEMODES:perms}\n]": "/etc/default/flanneld 17 root:root -rw-------\n",
		"[%{REQUIRES}\n]":   "/bin/sh\ngrep\nsystemd\n",
		"[%{RECOMMENDS}\n]": "iptables-nft\n",
	} {
		if out := output(t, "rpm", "-qp", "--qf", query, rpm); !strings.Contains(out, want) {
			t.Errorf("%s is %q, want %q", query, out, want)
		}
	}
}

// Each kind of package has the files of its distributions, and both have the man page, the completions and what Prometheus
// and Grafana read.
func TestFilesOfPackages(t *testing.T) {
	lists := map[string]string{
		"deb": output(t, "sh", "-c", "dpkg-deb --fsys-tarfile "+pathOf(t, "flanneld_9.8.7-1_amd64.deb")+" | tar -t | sed 's,^\\.,,'"),
		"rpm": output(t, "rpm", "-qpl", pathOf(t, "flanneld-9.8.7-1.x86_64.rpm")),
	}
	for file, kind := range only {
		for of, files := range lists {
			if strings.Contains(files, "/"+file+"\n") != (kind == of) {
				t.Errorf("%s is a file of the wrong package: want it in %s:\n%s", file, kind, files)
			}
		}
	}
	for of, files := range lists {
		if strings.Contains(files, "/flanneld.service.d") {
			t.Errorf("%s has a drop-in, which would also apply to another unit of the name in /etc:\n%s", of, files)
		}
		for _, name := range []string{"/usr/bin/flanneld", "/usr/lib/flannel/cni/flannel", "/usr/share/man/man8/flanneld.8.gz", "/usr/share/bash-completion/completions/flanneld",
			"/usr/share/fish/vendor_completions.d/flanneld.fish", "/usr/share/doc/flanneld/" + thirdParty, "/usr/share/doc/flanneld/monitoring/rules.yaml"} {
			if !strings.Contains(files, name+"\n") {
				t.Errorf("%s lacks %s:\n%s", of, name, files)
			}
		}
	}
}
