package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// only are the files that one kind of package has: the preset makes the RPM's script enable the service, which Debian's
// does by itself, and zsh looks for completions in other directories.
var only = map[string]string{
	"usr/lib/systemd/system-preset/80-flanneld.preset": "rpm",
	"usr/share/zsh/site-functions/_flanneld":           "rpm",
	"usr/share/zsh/vendor-completions/_flanneld":       "deb",
}

// packages is one of the steps that release.make runs: it writes a Debian package and an RPM for each architecture of
// Linux into r.out. notices is the text of THIRD-PARTY-LICENSES. Packages do not list the linked modules, the other
// argument of a step. make cross, man and completions have filled r.programs before.
func (r *release) packages(_ modules, notices []byte) (err error) {
	// nfpm, which makes the packages, reads their contents from files.
	work, err := os.MkdirTemp("", "flannel-release")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	shared, err := r.packageFiles(notices)
	if err != nil {
		return err
	}
	for _, s := range r.linux() {
		programs, err := r.read([]from{
			{r.program("flanneld", s), "usr/bin/flanneld", 0o755},
			{r.program("flannel", s), "usr/lib/flannel/cni/flannel", 0o755},
		})
		if err != nil {
			return err
		}
		contents, err := r.contents(work, append(programs, shared...))
		if err != nil {
			return err
		}
		for _, kind := range []string{"deb", "rpm"} {
			if err := r.writePackage(kind, s, contents); err != nil {
				return err
			}
		}
	}
	return nil
}

// packageFiles returns the files of a package that are the same for all architectures. Their names are relative to the
// root directory of the machine.
func (r *release) packageFiles(notices []byte) ([]entry, error) {
	const doc = "usr/share/doc/flanneld/"
	all, err := r.read([]from{
		{"dist/flanneld.service", "usr/lib/systemd/system/flanneld.service", 0o644},
		{"dist/packaging/80-flanneld.preset", "usr/lib/systemd/system-preset/80-flanneld.preset", 0o644},
		{"dist/packaging/flanneld.default", "etc/default/flanneld", 0o600}, // an administrator may add the password of etcd
		{"LICENSE", doc + "copyright", 0o644},
		{"CHANGELOG.md", doc + "CHANGELOG.md", 0o644},
	})
	if err != nil {
		return nil, err
	}
	// The unit of the repository starts the program where an administrator copied it to, and without a condition.
	// TestDebianPackage fails if the unit has another line, which would not be replaced here. The condition is in the unit
	// and not in a drop-in, which would also apply to an administrator's unit of the same name, such as flannel's.
	condition, err := os.ReadFile(filepath.Join(r.source, "dist", "packaging", "flanneld.condition"))
	if err != nil {
		return nil, err
	}
	all[0].data = bytes.Replace(all[0].data, []byte("ExecStart=/usr/local/bin/flanneld"), append(condition, "ExecStart=/usr/bin/flanneld"...), 1)
	all = append(all, entry{name: doc + thirdParty, mode: 0o644, data: notices})
	// rpm removes only directories that are in the package, once they are empty. etc/flannel is for files of the
	// administrator, such as the kubeconfig that the default file names.
	for _, dir := range []string{"etc/flannel", "usr/lib/flannel", "usr/lib/flannel/cni", doc, doc + "monitoring"} {
		all = append(all, entry{name: strings.TrimSuffix(dir, "/"), mode: fs.ModeDir | 0o755})
	}
	monitoring, err := r.tree(filepath.Join(r.source, "dist", "monitoring"), doc+"monitoring")
	if err != nil {
		return nil, err
	}
	all = append(all, monitoring...)
	pages, err := r.tree(filepath.Join(r.programs, "man"), "usr/share/man/man8")
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		var b bytes.Buffer
		if err := compressed(&b, func(w io.Writer) error { _, err := w.Write(page.data); return err }); err != nil {
			return nil, err
		}
		all = append(all, entry{name: page.name + ".gz", mode: 0o644, data: b.Bytes()})
	}
	for _, s := range shells {
		e, err := fileEntry(path.Join(s.dir, s.file), 0o644, filepath.Join(r.programs, "completions", s.file))
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// contents writes the files of a package below work, and returns them for nfpm. Each kind of package leaves out those
// that are only for the other one (Packager). The programs of an architecture overwrite those of the one before, whose
// packages are complete by then.
func (r *release) contents(work string, entries []entry) (all files.Contents, err error) {
	for _, e := range entries {
		c := &files.Content{Destination: "/" + e.name, Packager: only[e.name], FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: e.mode.Perm(), MTime: r.time}}
		all = append(all, c)
		if e.mode.IsDir() {
			c.Type = files.TypeDir
			continue
		}
		if strings.HasPrefix(e.name, "etc/") { // an upgrade keeps what an administrator has changed
			c.Type = files.TypeConfigNoReplace
		}
		c.Source = filepath.Join(work, e.name)
		if err := os.MkdirAll(filepath.Dir(c.Source), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(c.Source, e.data, 0o644); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// writePackage writes a package of a kind, "deb" or "rpm".
func (r *release) writePackage(kind string, s system, contents files.Contents) error {
	script := func(name string) string {
		return filepath.Join(r.source, "dist", "packaging", kind, name)
	}
	arch := s.arch
	if arch == "arm" {
		arch = "arm7" // the default of Go where nothing else is set
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "flanneld", Arch: arch, Platform: s.os, Version: r.version, Release: "1", Section: "net", Priority: "optional",
		Maintainer: "The flanneld authors <flanneld@localhost>", Vendor: "The flanneld authors", License: "Apache-2.0", MTime: r.time, DisableGlobbing: true,
		Description: "pod network of a node, a replacement of flannel\nflanneld takes the node's subnet from Kubernetes or etcd, writes\nsubnet.env for the CNI plugin, and makes the subnets of all other nodes\nreachable: by VXLAN, WireGuard, IPIP, UDP or routes.",
		Overridables: nfpm.Overridables{
			Contents: contents,
			Scripts:  nfpm.Scripts{PostInstall: script("postinst"), PreRemove: script("prerm"), PostRemove: script("postrm")},
			RPM:      nfpm.RPM{BuildHost: "release", Summary: "Pod network of a node, a replacement of flannel"},
		},
	})
	if kind == "deb" {
		info.Recommends = []string{"iptables"}
	} else {
		info.Recommends = []string{"iptables-nft"}
		info.Depends = []string{"/bin/sh", "grep", "systemd"} // of the scripts and the unit; Debian has them always
	}
	packager, err := nfpm.Get(kind)
	if err != nil {
		return err
	}
	return r.create(packager.ConventionalFileName(info), func(w io.Writer) error { return packager.Package(info, w) })
}
