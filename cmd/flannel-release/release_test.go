package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// made is the release that `make test-release` made, with this version, from this commit.
var made = flag.String("made", "", "directory of a release v9.8.7 for linux-amd64 and windows-amd64")

const version, commit = "v9.8.7", "0123456789abcdef0123456789abcdef01234567"

// pathOf returns where a file of the release is.
func pathOf(t *testing.T, name string) string {
	t.Helper()
	if *made == "" {
		t.Fatal("-made is missing: run make test-release")
	}
	return filepath.Join(*made, name)
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func TestFiles(t *testing.T) {
	entries, err := os.ReadDir(pathOf(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{"SHA256SUMS", "flannel-9.8.7.tgz", "flanneld-9.8.7-1.x86_64.rpm", "flanneld-v9.8.7-cdx.json", "flanneld-v9.8.7-image-nftables.tar",
		"flanneld-v9.8.7-image.cdx.json", "flanneld-v9.8.7-image.tar", "flanneld-v9.8.7-linux-amd64.tar.gz", "flanneld-v9.8.7-provenance.intoto.json",
		"flanneld-v9.8.7-windows-amd64.zip", "flanneld_9.8.7-1_amd64.deb", "kube-flannel-windows.yml", "kube-flannel.yml", "kube-proxy-windows.yml"}
	if !slices.Equal(names, want) {
		t.Errorf("the files are\n%s\nwant\n%s", names, want)
	}
	sums := output(t, "sh", "-c", "cd "+*made+" && sha256sum --strict -c SHA256SUMS")
	if n := strings.Count(sums, ": OK\n"); n != len(want)-1 {
		t.Errorf("%d sums, want one for each of the other files:\n%s", n, sums)
	}
}

func TestProvenanceNamesAllFiles(t *testing.T) {
	var s statement
	text, err := os.ReadFile(pathOf(t, "flanneld-v9.8.7-provenance.intoto.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if at := s.Predicate.BuildDefinition.ResolvedDependencies; len(at) != 1 || at[0].Digest["gitCommit"] != commit {
		t.Errorf("made from %v", at)
	}
	for _, f := range s.Subject {
		data, err := os.ReadFile(pathOf(t, f.Name))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != f.Digest["sha256"] {
			t.Errorf("%s has another digest", f.Name)
		}
	}
	if len(s.Subject) != 12 { // all but this file and the sums
		t.Errorf("%d files have a digest", len(s.Subject))
	}
}

// unpackTo writes entries of a tar file into a directory.
func unpackTo(t *testing.T, dir string, r io.Reader) {
	t.Helper()
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(to, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, to)
		default:
			var data []byte
			if data, err = io.ReadAll(archive); err == nil {
				err = os.WriteFile(to, data, h.FileInfo().Mode())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestArchive(t *testing.T) {
	f, err := os.Open(pathOf(t, "flanneld-v9.8.7-linux-amd64.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unpackTo(t, dir, z)
	top := filepath.Join(dir, "flanneld-v9.8.7")
	if out := output(t, filepath.Join(top, "flanneld"), "--version"); !strings.HasPrefix(out, "v9.8.7 (commit 0123456789ab) go") {
		t.Errorf("the version is %s", out)
	}
	for _, name := range []string{"cni/flannel", "flanneld.service", "flanneld.default", "LICENSE", "CHANGELOG.md", thirdParty, "man/flanneld.8", "completions/_flanneld",
		"monitoring/rules.yaml", "monitoring/dashboard.json"} {
		if info, err := os.Stat(filepath.Join(top, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	notices, err := os.ReadFile(filepath.Join(top, thirdParty))
	if err != nil || !strings.Contains(string(notices), "k8s.io/client-go ") || !strings.Contains(string(notices), "Copyright 2009 The Go Authors.") {
		t.Errorf("the licences lack those of client-go or Go: %v", err)
	}
}

// The archive for Windows has what the Dockerfile of its images copies.
func TestWindowsArchive(t *testing.T) {
	files := output(t, "python3", "-m", "zipfile", "-l", pathOf(t, "flanneld-v9.8.7-windows-amd64.zip"))
	for _, name := range []string{"flanneld.exe", "cni/flannel.exe", "cni/win-overlay.exe", "cni/win-bridge.exe", "cni/host-local.exe", "kube-proxy.ps1", thirdParty} {
		if !strings.Contains(files, "\n"+name+" ") {
			t.Errorf("the archive lacks %s:\n%s", name, files)
		}
	}
}

// index returns the image index in an archive of the release, and its reference.
func index(t *testing.T, file string) (v1.ImageIndex, string) {
	t.Helper()
	f, err := os.Open(pathOf(t, file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	unpackTo(t, dir, f)
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := top.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatalf("want one image in the layout: %v", err)
	}
	of := list.Manifests[0]
	images, err := top.ImageIndex(of.Digest)
	if err != nil {
		t.Fatal(err)
	}
	return images, of.Annotations["org.opencontainers.image.ref.name"] + "@" + of.Digest.String()
}

// root unpacks the image of an index for this machine.
func root(t *testing.T, images v1.ImageIndex) string {
	t.Helper()
	list, err := images.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Manifests {
		if m.Platform.Architecture != "amd64" {
			continue
		}
		image, err := images.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if config, err := image.ConfigFile(); err != nil || config.OS != "linux" || config.Config.Labels["org.opencontainers.image.revision"] != commit {
			t.Errorf("%v: configuration %+v", err, config)
		}
		dir := t.TempDir()
		unpackTo(t, dir, mutate.Extract(image))
		return dir
	}
	t.Fatal("there is no image for amd64")
	return ""
}

func TestImage(t *testing.T) {
	images, reference := index(t, "flanneld-v9.8.7-image.tar")
	dir := root(t, images)
	for _, command := range [][]string{{"/opt/bin/flanneld", "--version"}, {"iptables-nft", "--version"}, {"iptables-legacy", "--version"}, {"ip6tables-restore", "--version"},
		{"nft", "--version"}, {"ip", "-V"}, {"sh", "-c", "ls / | grep -q opt"}, {"/opt/flannel/cni/flannel", "--help"}} {
		output(t, "chroot", append([]string{dir}, command...)...)
	}
	for _, name := range []string{"usr/share/doc/libc6/copyright", "var/lib/dpkg/status.d/iptables", "usr/share/doc/flanneld/" + thirdParty} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	chart := output(t, "tar", "-xzOf", pathOf(t, "flannel-9.8.7.tgz"), "flannel/Chart.yaml", "flannel/values.yaml")
	for _, want := range []string{"\nversion: 9.8.7\n", "\nappVersion: v9.8.7\n", "\n  repository: registry.example.com/flanneld\n  tag: " + reference + "\n"} {
		if !strings.Contains(chart, want) {
			t.Errorf("the chart lacks %q:\n%s", want, chart)
		}
	}
	manifest, err := os.ReadFile(pathOf(t, "kube-flannel.yml"))
	if err != nil || strings.Count(string(manifest), "image: registry.example.com/flanneld:"+reference+"\n") != 3 {
		t.Errorf("the manifest does not name the image %s: %v", reference, err)
	}
	for _, path := range []string{"/opt/bin/flanneld", "/opt/flannel/cni/flannel"} {
		if _, err := os.Stat(filepath.Join(dir, path)); err != nil || !strings.Contains(string(manifest), path) {
			t.Errorf("%s is not in both the image and the manifest: %v", path, err)
		}
	}
}

// Without iptables and a shell: nothing but ours.
func TestMinimalImage(t *testing.T) {
	images, _ := index(t, "flanneld-v9.8.7-image-nftables.tar")
	dir := root(t, images)
	output(t, "chroot", dir, "/opt/bin/flanneld", "--version")
	var all []string
	if err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all = append(all, strings.TrimPrefix(name, dir))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/opt/bin/flanneld", "/opt/flannel/cni/flannel", "/usr/share/doc/flanneld/LICENSE", "/usr/share/doc/flanneld/" + thirdParty}; !slices.Equal(all, want) {
		t.Errorf("the files are %s, want %s", all, want)
	}
}

func TestSBOM(t *testing.T) {
	for file, want := range map[string][]string{
		"flanneld-v9.8.7-cdx.json":       {"pkg:golang/k8s.io/client-go@", "pkg:golang/std@go"},
		"flanneld-v9.8.7-image.cdx.json": {"pkg:golang/k8s.io/client-go@", "pkg:deb/debian/libc6@", "pkg:deb/debian/iptables@"},
	} {
		f, err := os.Open(pathOf(t, file))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var bom cdx.BOM
		if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatal(err)
		}
		for _, prefix := range want {
			if !slices.ContainsFunc(*bom.Components, func(c cdx.Component) bool { return strings.HasPrefix(c.PackageURL, prefix) }) {
				t.Errorf("%s lacks %s", file, prefix)
			}
		}
	}
}

// Who has other nodes than those of the image in the manifest and the chart reads so before they install it.
func TestPagesNameTheArchitectures(t *testing.T) {
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, line, _ := strings.Cut(read("Makefile"), "\nSYSTEMS := ")
	line, _, _ = strings.Cut(line, "\n")
	install, _, _ := strings.Cut(read("Documentation/install.md"), "```")
	upgrade := read("Documentation/upgrade.md")
	found := 0
	for _, name := range strings.Fields(line) {
		if arch, isLinux := strings.CutPrefix(name, "linux-"); isLinux {
			found++
			for page, text := range map[string]string{"install.md": install, "upgrade.md": upgrade} {
				if !slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,.:\n", r) }), arch) {
					t.Errorf("%s does not say whether the image is for %s", page, arch)
				}
			}
		}
	}
	if found <= len(fullArchs) {
		t.Errorf("SYSTEMS is %q", line)
	}
}

func TestBadArguments(t *testing.T) {
	good := []string{"-version=v1.2.3", "-commit=" + commit, "-time=1", "-systems=linux-amd64", "-source=" + t.TempDir()}
	for bad, names := range map[string][]string{
		"-version=1.2": {"--version", `"1.2"`, "v1.2.3"},
		"-commit=":     {"--commit"},
		"-time=0":      {"--time"},
		"":             {"make cross"},
	} {
		args := append(slices.Clone(good), "make")
		if bad != "" {
			args = slices.Insert(args, len(good), bad)
		}
		err := run(t.Context(), args)
		for _, name := range names {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v, want %s", bad, err, name)
			}
		}
	}
}

func TestLicencesAreChecked(t *testing.T) {
	for _, m := range []module{{path: "a", version: "v1"}, {path: "a", version: "v1", licences: []string{"MIT", "GPL-2.0"}}} {
		if err := m.check(); err == nil || !strings.Contains(err.Error(), "a v1") {
			t.Errorf("%v: %v", m.licences, err)
		}
	}
}

// What was downloaded is only used if it is what was pinned.
func TestPackageIsVerified(t *testing.T) {
	cache := t.TempDir()
	p := debianPackage{Name: "x", Version: "1", SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("right")))}
	if _, err := p.read(cache); err == nil || !strings.Contains(err.Error(), "make release-deps") {
		t.Errorf("missing: %v", err)
	}
	for content, want := range map[string]bool{"right": true, "wrong": false} {
		if err := os.WriteFile(p.file(cache), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := p.read(cache); (err == nil) != want {
			t.Errorf("%s: %v", content, err)
		}
	}
}

// A directory that would replace a link of the system with merged /usr is refused.
func TestMergedUsr(t *testing.T) {
	for name, want := range map[string]bool{"./lib/": false, "./usr/lib/": true, "./libx/": true} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeDir}), w.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := untar(&b); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
