package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// wantedByTests are the packages of Debian whose programs Kubernetes' end-to-end tests run in their pods. Kubernetes' own
// images have those of Alpine, and other versions of Debian. The command conformance-pins (main.go) chooses the versions.
var wantedByTests = []string{"base-files", "netbase", "libc-bin", "bash", "dash", "coreutils", "findutils", "grep", "sed", "hostname", "procps",
	"curl", "wget", "bind9-dnsutils", "netcat-openbsd", "iproute2", "iperf", "iptables", "conntrack"}

// testRoot are files that the packages' scripts would have made (nc, nsswitch.conf), and those that tests expect in their
// images: wget as busybox has it, which tries once, and the directory in which agnhost stores what it gets.
var testRoot = []entry{
	{name: "usr/bin/nc", link: "nc.openbsd", mode: fs.ModeSymlink},
	{name: "etc/nsswitch.conf", mode: 0o644, data: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
	{name: "etc/wgetrc", mode: 0o644, data: []byte("tries = 1\n")},
	{name: "uploads", mode: fs.ModeDir | 0o755},
}

// testImages are the images that the tests of SIG Network run, by the last part of their names: the programs that
// each has above Debian's packages, which are files in r.out, and how it is run.
var testImages = map[string]struct {
	programs []string
	run      v1.Config
}{
	"agnhost":                {[]string{"agnhost", "coredns", "localhost.crt", "localhost.key"}, v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}},
	"busybox":                {nil, v1.Config{Cmd: []string{"sh"}}},
	"glibc-dns-testing":      {nil, v1.Config{Cmd: []string{"bash"}}},
	"distroless-iptables":    {nil, v1.Config{Cmd: []string{"bash"}}},
	"pause":                  {[]string{"agnhost"}, v1.Config{Entrypoint: []string{"/agnhost", "pause"}}},
	"regression-issue-74839": {[]string{"regression-issue-74839"}, v1.Config{Entrypoint: []string{"/regression-issue-74839"}}},
	"coredns":                {[]string{"coredns"}, v1.Config{Entrypoint: []string{"/coredns"}}},
}

// coreDNS is the name of the image of CoreDNS, in cmd/flannel-lab/conformance/coredns.yaml.
const coreDNS = "registry.k8s.io/coredns/coredns:dev"

// conformanceImages is the command conformance: it writes conformance.tar, with the images of Kubernetes' end-to-end
// tests and of CoreDNS, into the directory r.out. It reads there the programs of the images, and the file e2e.images,
// which has the names of all images of the tests: images that are not in testImages are left out. All images have the
// same packages of Debian as their first layer: those in pinsFile, which conformance-pins writes.
func (r *release) conformanceImages(ctx context.Context, pinsFile string) error {
	if len(r.systems) != 1 || r.out == "" {
		return errors.New("conformance: want one system, and a directory")
	}
	s := r.systems[0]
	root, err := r.pinnedRoot(ctx, pinsFile, s)
	if err != nil {
		return err
	}
	below, err := r.layer(append(root, testRoot...))
	if err != nil {
		return err
	}
	names, err := os.ReadFile(filepath.Join(r.out, "e2e.images"))
	if err != nil {
		return err
	}
	var images []namedImage
	for name := range strings.FieldsSeq(string(names) + " " + coreDNS) {
		base, _, _ := strings.Cut(path.Base(name), ":") // without registry and tag
		kind, used := testImages[base]
		if !used || strings.Contains(name, "k8s-authenticated-test") { // no test of ours may pull from a private registry
			continue
		}
		image, err := r.testImage(s, below, kind.programs, kind.run)
		if err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		images = append(images, labImage(s, image, name)) // named so that containerd needs no registry
	}
	return r.writeLayout("conformance.tar", images...)
}

// testImage makes an image of the first layer, which all images have in common, and of programs.
func (r *release) testImage(s system, below v1.Layer, programs []string, run v1.Config) (v1.Image, error) {
	layers := []v1.Layer{below}
	var entries []entry
	for _, name := range programs {
		program, err := fileEntry(name, 0o755, filepath.Join(r.out, name))
		if err != nil {
			return nil, err
		}
		entries = append(entries, program)
	}
	if entries != nil {
		layer, err := r.layer(entries)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	run.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"}
	return r.stack(s, layers, run)
}
