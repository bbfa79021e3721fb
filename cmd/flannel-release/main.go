// Command flannel-release makes the files of a release from the programs that `make cross` built, without a network.
//
// The same commit gives the same bytes, in any directory: every time in the files is that of the commit. What comes from
// others is pinned: Go modules in go.sum, Debian's packages in debian.json, which `release pins` renews.
//
// The Makefile calls it: `make release` with the command make, others for images of the lab and of tests, and for pins.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// release is what all steps need.
type release struct {
	version string    // v1.2.3, or what git describe prints
	commit  string    // HEAD of what was built, hexadecimal; says nothing of changes that are not committed
	time    time.Time // of the commit; that of all files
	image   string    // where the images will be: a name without tag; "flanneld" if nobody gives one

	systems  []system // of the programs
	source   string   // the repository
	programs string   // directory of what make cross, man and completions built
	cache    string   // directory of downloaded packages of Debian
	out      string   // directory where the release goes, or the images
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run carries out one command. For a command that has a directory as its argument, r.out is this directory.
func run(ctx context.Context, args []string) error {
	var r release
	var unix int64
	var systems, pins string
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "version, such as v1.2.3")
	flags.StringVar(&r.commit, "commit", "", "commit that was built")
	flags.Int64Var(&unix, "time", 0, "time of the commit, in seconds since 1970")
	flags.StringVar(&r.image, "image", "flanneld", "name of the images in the registry, without a tag")
	flags.StringVar(&systems, "systems", "", "systems that make cross built, separated by spaces, such as linux-arm64")
	flags.StringVar(&pins, "pins", "debian.json", "file with the packages of Debian for the images")
	flags.StringVar(&r.source, "source", "../..", "directory of the repository, with the programs in dist/out")
	flags.StringVar(&r.cache, "cache", "../../bin/debian", "directory of downloaded packages")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for name := range strings.FieldsSeq(systems) {
		os, arch, _ := strings.Cut(name, "-")
		r.systems = append(r.systems, system{os, arch})
	}
	r.time, r.programs = time.Unix(unix, 0).UTC(), filepath.Join(r.source, "dist", "out")
	switch command := flags.Arg(0); command {
	case "pins":
		return renewPins(ctx, pins, wanted, fullArchs)
	case "conformance-pins":
		return renewPins(ctx, pins, wantedByTests, fullArchs)
	case "base":
		return renewBase(ctx, http.DefaultClient, filepath.Join(r.source, "dist", "windows", "Dockerfile"))
	case "fetch":
		return fetchPins(ctx, pins, r.cache)
	case "unpack":
		return unpackPins(ctx, pins, r.cache, flags.Arg(1))
	case "lab":
		r.out = flags.Arg(1)
		return r.labImages(ctx, pins)
	case "images":
		r.out = flags.Arg(1)
		return r.imagesAlone(pins)
	case "conformance":
		r.out = flags.Arg(1)
		return r.conformanceImages(ctx, pins)
	case "licences":
		return r.checkLicences()
	case "make", "packages":
		steps := r.steps(pins)
		r.out = filepath.Join(r.programs, "release")
		if command == "packages" {
			steps = []step{r.packages}
			r.out = filepath.Join(r.programs, "packages")
		}
		return r.make(steps)
	default:
		return fmt.Errorf("command %q: want pins, base, fetch, unpack, lab, images, conformance, conformance-pins, licences, make or packages", command)
	}
}

// versionPattern is a semantic version with a v, which is also what git describe prints after the first tag.
var versionPattern = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// step makes files of the release, in r.out. It gets the modules that are linked into the programs, and the text of
// THIRD-PARTY-LICENSES. With its error, make ends.
type step func(linked modules, notices []byte) error

// steps are those of a whole release, in the order in which make runs them: provenance lists the files of the steps
// before it, and checksums all files.
func (r *release) steps(pins string) []step {
	return []step{
		r.archives,
		r.packages,
		func(linked modules, _ []byte) error { return r.writeSBOM(linked, nil, r.name("cdx.json")) },
		func(linked modules, notices []byte) error { return r.images(pins, linked, notices) },
		func(modules, []byte) error { return r.provenance() },
		func(modules, []byte) error { return r.checksums() },
	}
}

// make runs steps one after the other, into an empty r.out. It needs no network.
func (r *release) make(steps []step) error {
	switch {
	case !versionPattern.MatchString(r.version):
		return fmt.Errorf("--version %q: want one like v1.2.3 or v1.2.3-rc.1: make release VERSION=v1.2.3", r.version)
	case r.commit == "":
		return errors.New("--commit is missing: the release says what was built")
	case r.time.Unix() <= 0:
		return errors.New("--time is missing: all files of the release get the time of the commit")
	}
	for _, path := range r.allPrograms() {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%w: run make cross first", err)
		}
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	linked, err := r.modules()
	if err != nil {
		return err
	}
	notices, err := linked.notices()
	if err != nil {
		return err
	}
	for _, s := range steps {
		if err := s(linked, notices); err != nil {
			return err
		}
	}
	return nil
}

// system is an operating system and an architecture, in the words of Go.
type system struct{ os, arch string }

func (s system) String() string { return s.os + "-" + s.arch }

// linux returns the Linux systems.
func (r *release) linux() []system {
	return slices.DeleteFunc(slices.Clone(r.systems), func(s system) bool { return s.os != "linux" })
}

// allPrograms returns where ours are for all systems.
func (r *release) allPrograms() (paths []string) {
	for _, s := range r.systems {
		paths = append(paths, r.program("flanneld", s), r.program("flannel", s))
	}
	return paths
}

// fullArchs are the architectures of the image that has Debian's packages.
var fullArchs = []string{"amd64", "arm64"}

// windows is the only system of Windows for which there are programs.
var windows = system{"windows", "amd64"}

// program returns where a program is that `make cross` built.
func (r *release) program(name string, s system) string {
	path := filepath.Join(r.programs, name+"-"+s.String())
	if s.os == "windows" {
		path += ".exe"
	}
	return path
}

// name returns the name of a file of the release, such as flanneld-v1.2.3-<of>.
func (r *release) name(of string) string { return "flanneld-" + r.version + "-" + of }
