package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/blakesmith/ar"
	"github.com/ulikunitz/xz"
)

// pins are the packages of Debian in the image, with everything that they depend on, for each architecture of Go.
// They are the content of debian.json, or of conformance.json, for the images of the pods that Kubernetes' end-to-end
// tests start (--pins).
type pins struct {
	Suite    string
	Snapshot string // time of the archive from which they were chosen; snapshot.debian.org keeps it
	Packages map[string][]debianPackage
}

// debianPackage is a version of a package.
type debianPackage struct {
	Name, Version, Architecture string
	Archive                     string // debian, or debian-security
	Path                        string // below the archive
	SHA256                      string
}

// suite is the release of Debian, and wanted are the packages of its image: both variants of iptables, nft, and what a
// person needs at a prompt in the container.
var (
	suite  = "trixie"
	wanted = []string{"base-files", "netbase", "iptables", "nftables", "dash", "coreutils", "grep", "iproute2"}
)

// debianArch returns Debian's name of an architecture of Go.
func debianArch(arch string) string {
	switch arch {
	case "arm":
		return "armhf"
	case "ppc64le":
		return "ppc64el"
	}
	return arch
}

const mirror = "https://deb.debian.org/"

// renewPins is the command pins: it chooses the latest versions of packages for architectures of Go with apt, which
// verifies the archive's signature, and writes their versions and checksums to file.
func renewPins(ctx context.Context, file string, packages, archs []string) error {
	p := pins{Suite: suite, Snapshot: time.Now().UTC().Format("20060102T150405Z"), Packages: map[string][]debianPackage{}}
	for _, arch := range archs {
		chosen, err := choosePackages(ctx, packages, debianArch(arch))
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		p.Packages[arch] = chosen
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// choosePackages asks an apt with directories of its own, as if nothing were installed.
func choosePackages(ctx context.Context, packages []string, arch string) (chosen []debianPackage, err error) {
	dir, err := os.MkdirTemp("", "flannel-apt")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	sources := ""
	for _, s := range []string{"debian " + suite, "debian " + suite + "-updates", "debian-security " + suite + "-security"} {
		sources += "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + mirror + s + " main\n"
	}
	config := fmt.Sprintf(`Dir %q; Dir::State "state"; Dir::State::status %q; Dir::Cache "cache"; Dir::Etc "etc";
Dir::Etc::sourcelist "sources.list"; Dir::Etc::sourceparts "/dev/null"; APT::Architecture %q; APT::Architectures { %q; };
APT::Sandbox::User "root"; Acquire::Retries "5"; Acquire::Languages "none"; APT::Install-Recommends "false";
`, dir, filepath.Join(dir, "status"), arch, arch)
	for name, content := range map[string]string{"etc/sources.list": sources, "status": "", "apt.conf": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	apt := func(program string, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, "apt.conf"))
		out, err := cmd.Output()
		if exit, isExit := errors.AsType[*exec.ExitError](err); isExit {
			err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, exit.Stderr)
		}
		return out, err
	}
	if _, err := apt("apt-get", "-qq", "update"); err != nil {
		return nil, err
	}
	out, err := apt("apt-get", append([]string{"-qq", "-y", "--print-uris", "install"}, packages...)...)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) { // 'https://…/main/b/bash/bash_5_amd64.deb' bash_5_amd64.deb …
		address, _, ok := strings.Cut(strings.TrimPrefix(line, "'"), "'")
		if !ok {
			continue
		}
		full, err := url.PathUnescape(strings.TrimPrefix(address, mirror))
		if err != nil {
			return nil, err
		}
		archive, file, _ := strings.Cut(full, "/")
		chosen = append(chosen, debianPackage{Name: strings.Split(path.Base(file), "_")[0], Archive: archive, Path: file})
	}
	for i := range chosen {
		if err := chosen[i].describe(apt); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(chosen, func(a, b debianPackage) int { return strings.Compare(a.Name, b.Name) })
	return chosen, nil
}

// describe sets the version, the architecture and the checksum, from the lists of the archive, whose signature apt has
// verified.
func (p *debianPackage) describe(apt func(string, ...string) ([]byte, error)) error {
	out, err := apt("apt-cache", "show", p.Name)
	if err != nil {
		return err
	}
	for _, paragraph := range strings.Split(string(out), "\n\n") {
		fields := map[string]string{}
		for line := range strings.Lines(paragraph) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(line, " ") {
				fields[name] = value
			}
		}
		if fields["Filename"] == p.Path {
			p.Version, p.Architecture, p.SHA256 = fields["Version"], fields["Architecture"], fields["SHA256"]
			return nil
		}
	}
	return fmt.Errorf("apt-cache show %s: nothing about %s", p.Name, p.Path)
}

func readPins(file string) (p pins, err error) {
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return p, err
}

// fetchPins is the command fetch: it downloads the packages that the cache lacks.
func fetchPins(ctx context.Context, file, cache string) error {
	p, err := readPins(file)
	if err != nil {
		return err
	}
	for _, list := range p.Packages {
		if err := p.fetchAll(ctx, list, cache); err != nil {
			return err
		}
	}
	return nil
}

// fetchAll downloads those packages of a list that the cache lacks, or has with another content than the pinned one.
func (p *pins) fetchAll(ctx context.Context, list []debianPackage, cache string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	for _, pkg := range list {
		if _, err := pkg.read(cache); err == nil {
			continue
		}
		if err := p.fetch(ctx, pkg, cache); err != nil {
			return err
		}
	}
	return nil
}

// unpackPins is the command unpack: it writes the files of the image's packages for this machine into a directory, so
// that tests can run the programs of the image.
func unpackPins(ctx context.Context, file, cache, dir string) error {
	p, err := readPins(file)
	if err != nil {
		return err
	}
	list := p.Packages[runtime.GOARCH]
	if len(list) == 0 {
		return fmt.Errorf("%s has no packages for %s", file, runtime.GOARCH)
	}
	if err := p.fetchAll(ctx, list, cache); err != nil {
		return err
	}
	entries, err := debianRoot(list, cache)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := e.write(dir); err != nil {
			return err
		}
	}
	return nil
}

// write makes the entry below a directory. It is an error if a link to be written exists.
func (e entry) write(dir string) error {
	name := filepath.Join(dir, e.name)
	if e.mode.IsDir() {
		return os.MkdirAll(name, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if e.link != "" {
		return os.Symlink(e.link, name)
	}
	return os.WriteFile(name, e.data, e.mode.Perm())
}

// fetch downloads a package from the mirror, which has the latest versions, or else from the archive of all versions.
func (p *pins) fetch(ctx context.Context, pkg debianPackage, cache string) error {
	var failed error
	// http is enough, as the checksum, which verify compares, protects the package.
	for _, base := range []string{mirror + pkg.Archive, "http://snapshot.debian.org/archive/" + pkg.Archive + "/" + p.Snapshot} {
		data, err := download(ctx, base+"/"+(&url.URL{Path: pkg.Path}).EscapedPath())
		if err == nil {
			err = pkg.verify(data)
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		temporary := pkg.file(cache) + ".part"
		if err := os.WriteFile(temporary, data, 0o644); err != nil {
			return err
		}
		return os.Rename(temporary, pkg.file(cache))
	}
	return fmt.Errorf("download %s %s: %w: or renew the versions: make pins", pkg.Name, pkg.Version, failed)
}

func download(ctx context.Context, address string) (data []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", address, response.Status)
	}
	return io.ReadAll(response.Body)
}

func (p *debianPackage) file(cache string) string { return filepath.Join(cache, p.SHA256+".deb") }

func (p *debianPackage) verify(data []byte) error {
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != p.SHA256 {
		return fmt.Errorf("%s %s: the SHA-256 sum is %x, want %s", p.Name, p.Version, sum, p.SHA256)
	}
	return nil
}

// read returns a package from the cache, and an error if it is not there or not the one that is pinned.
func (p *debianPackage) read(cache string) ([]byte, error) {
	data, err := os.ReadFile(p.file(cache))
	if err != nil {
		return nil, fmt.Errorf("package %s %s of Debian: %w: run make release-deps, which needs a network", p.Name, p.Version, err)
	}
	return data, p.verify(data)
}

// useless reports whether a file of a package is not needed in a container. Licences are.
func useless(name string) bool {
	if strings.HasPrefix(name, "usr/share/doc/") {
		return path.Base(name) != "copyright"
	}
	for _, dir := range []string{"usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/lintian/", "usr/share/bug/"} {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	return false
}

// debianRoot returns the files of packages in the cache, unpacked without running their scripts, and what the scripts
// would have made. A directory is there once for each package that has it (see sorted).
func debianRoot(packages []debianPackage, cache string) ([]entry, error) {
	var all []entry
	for _, p := range packages {
		data, err := p.read(cache)
		if err != nil {
			return nil, err
		}
		entries, err := unpack(data)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", p.Name, p.Version, err)
		}
		all = append(all, entries...)
		// Scanners of images read the installed packages here, as in distroless images.
		status := fmt.Sprintf("Package: %s\nStatus: install ok installed\nVersion: %s\nArchitecture: %s\nMaintainer: Debian\n", p.Name, p.Version, p.Architecture)
		all = append(all, entry{name: "var/lib/dpkg/status.d/" + p.Name, mode: 0o644, data: []byte(status)})
	}
	// The alternatives of the package iptables: the nft variant, as Debian's default. flanneld runs the one that the
	// host uses.
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		family, verb, _ := strings.Cut(name, "-")
		all = append(all, entry{name: "usr/sbin/" + name, link: strings.TrimSuffix(family+"-nft-"+verb, "-"), mode: fs.ModeSymlink})
	}
	return append(all,
		entry{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")},
		entry{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\nnogroup:x:65534:\n")},
		entry{name: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777}), nil
}

// unpack returns the files of a Debian package (deb(5)), without what useless leaves out.
func unpack(deb []byte) ([]entry, error) {
	for members := ar.NewReader(bytes.NewReader(deb)); ; {
		h, err := members.Next()
		if err != nil {
			return nil, fmt.Errorf("look for data.tar.xz: %w", err)
		}
		if strings.TrimSuffix(h.Name, "/") != "data.tar.xz" {
			continue
		}
		plain, err := xz.NewReader(members)
		if err != nil {
			return nil, err
		}
		return untar(plain)
	}
}

func untar(r io.Reader) (all []entry, err error) {
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		e := entry{name: strings.Trim(path.Clean("/"+h.Name), "/"), mode: h.FileInfo().Mode(), link: h.Linkname} // names begin with ./
		if e.name == "" || useless(e.name) {
			continue
		}
		switch h.Typeflag {
		case tar.TypeDir:
			if slices.Contains([]string{"bin", "sbin", "lib", "lib64"}, e.name) { // links of base-files, which it would replace
				return nil, fmt.Errorf("%s is a directory, want a link", h.Name)
			}
		case tar.TypeSymlink:
		case tar.TypeReg:
			if e.data, err = io.ReadAll(t); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%s is of type %q, which is not expected", h.Name, h.Typeflag)
		}
		all = append(all, e)
	}
}
