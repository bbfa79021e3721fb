package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file, a directory or a link of an archive, an image or a package.
type entry struct {
	name string      // with slashes, without one at the start or end
	mode fs.FileMode // permissions, the sticky bit, and whether it is a directory; a link is one by its target
	data []byte      // of a file
	link string      // target of a link; else ""
}

// fileEntry reads the file from, which is called name in the release.
func fileEntry(name string, mode fs.FileMode, from string) (entry, error) {
	data, err := os.ReadFile(from)
	return entry{name: name, mode: mode, data: data}, err
}

// sorted orders entries by name, and adds the directories that they are in and that are not among them. Of two
// entries with one name, the later one stays: what we add to packages of Debian may replace their files.
func sorted(entries []entry) []entry {
	byName := map[string]entry{}
	for _, e := range entries {
		byName[e.name] = e
	}
	for _, e := range entries {
		for dir := path.Dir(e.name); dir != "."; dir = path.Dir(dir) {
			if _, there := byName[dir]; !there {
				byName[dir] = entry{name: dir, mode: fs.ModeDir | 0o755}
			}
		}
	}
	all := make([]entry, 0, len(byName))
	for _, e := range byName {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return all
}

// writeTar writes a tar file whose entries belong to root and have one time.
func writeTar(w io.Writer, entries []entry, at time.Time) error {
	t := tar.NewWriter(w)
	for _, e := range sorted(entries) {
		h := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), ModTime: at, Typeflag: tar.TypeReg, Size: int64(len(e.data)), Format: tar.FormatPAX}
		switch {
		case e.mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, e.name+"/"
			if e.mode&fs.ModeSticky != 0 {
				h.Mode |= 0o1000
			}
		case e.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(e.data); err != nil {
			return err
		}
	}
	return t.Close()
}

// create writes a file of the release into r.out. After an error, a part of it stays there: the caller fails, too, and
// the next release begins with an empty directory.
func (r *release) create(name string, write func(io.Writer) error) (err error) {
	f, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return write(f)
}

// compressed writes through gzip, whose header has neither name nor time.
func compressed(w io.Writer, write func(io.Writer) error) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(write(z), z.Close())
}

// writeZip writes a zip file whose entries have one time.
func writeZip(w io.Writer, entries []entry, at time.Time) error {
	z := zip.NewWriter(w)
	for _, e := range sorted(entries) {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: at}
		h.SetMode(e.mode)
		if e.mode.IsDir() {
			h.Name, h.Method = e.name+"/", zip.Store
		}
		f, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := f.Write(e.data); err != nil {
			return err
		}
	}
	return z.Close()
}

// archives is a step: it writes an archive with the programs for each system of Linux, and one for Windows with what
// its nodes have in C:\k.
func (r *release) archives(_ modules, notices []byte) error {
	documents, err := r.documents()
	if err != nil {
		return err
	}
	for _, s := range r.linux() {
		entries, err := r.read([]from{
			{r.program("flanneld", s), "flanneld", 0o755},
			{r.program("flannel", s), "cni/flannel", 0o755},
			{"dist/flanneld.service", "flanneld.service", 0o644},
			{"dist/packaging/flanneld.default", "flanneld.default", 0o644},
		})
		if err != nil {
			return err
		}
		entries = slices.Concat(entries, documents, []entry{{name: thirdParty, mode: 0o644, data: notices}})
		top := strings.TrimSuffix(r.name(""), "-") // the directory into which the archive unpacks
		for i := range entries {
			entries[i].name = path.Join(top, entries[i].name)
		}
		err = r.create(r.name(s.String()+".tar.gz"), func(w io.Writer) error {
			return compressed(w, func(w io.Writer) error { return writeTar(w, entries, r.time) })
		})
		if err != nil {
			return err
		}
	}
	if !slices.Contains(r.systems, windows) {
		return nil
	}
	zipped, err := r.tree(filepath.Join(r.programs, "k"), "") // make windows-zip puts there what belongs into C:\k
	if err != nil {
		return err
	}
	zipped = append(zipped, entry{name: thirdParty, mode: 0o644, data: notices})
	return r.create(r.name(windows.String()+".zip"), func(w io.Writer) error { return writeZip(w, zipped, r.time) })
}

// thirdParty is the file with the licences of everything that is linked in.
const thirdParty = "THIRD-PARTY-LICENSES"

// from is a file, and its name and mode in the release. The path is relative to the repository, or begins with r.programs,
// as release.program returns it.
type from struct {
	path, name string
	mode       fs.FileMode
}

// read reads files.
func (r *release) read(files []from) ([]entry, error) {
	entries := make([]entry, 0, len(files))
	for _, f := range files {
		if !strings.HasPrefix(f.path, r.programs) {
			f.path = filepath.Join(r.source, f.path)
		}
		e, err := fileEntry(f.name, f.mode, f.path)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// tree reads the files in a directory and below it. Their names begin with below, and their mode is 0644.
func (r *release) tree(dir, below string) ([]entry, error) {
	var entries []entry
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		e, err := fileEntry(path.Join(below, filepath.ToSlash(relative)), 0o644, name)
		entries = append(entries, e)
		return err
	})
	return entries, err
}

// shells are those for which there are completions, with the name of the file and where packages put it.
var shells = []struct{ file, dir string }{
	{"flanneld", "usr/share/bash-completion/completions"},
	{"_flanneld", "usr/share/zsh/vendor-completions"},
	{"_flanneld", "usr/share/zsh/site-functions"},
	{"flanneld.fish", "usr/share/fish/vendor_completions.d"},
}

// documents returns the licence, the changelog, the man pages, the completions, and the rules and the dashboard for
// monitoring.
func (r *release) documents() ([]entry, error) {
	entries, err := r.read([]from{{"LICENSE", "LICENSE", 0o644}, {"CHANGELOG.md", "CHANGELOG.md", 0o644}})
	if err != nil {
		return nil, err
	}
	pages, err := r.tree(filepath.Join(r.programs, "man"), "man")
	if err != nil {
		return nil, err
	}
	completions, err := r.tree(filepath.Join(r.programs, "completions"), "completions")
	if err != nil {
		return nil, err
	}
	monitoring, err := r.tree(filepath.Join(r.source, "dist", "monitoring"), "monitoring")
	return slices.Concat(entries, pages, completions, monitoring), err
}
