package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// minimal is what the tag of the image without iptables and a shell ends with.
const minimal = "-nftables"

// images is a step: it writes both images, the one with Debian's packages and the minimal one, their SBOM, and the
// chart and the manifests, which refer to the first one by its digest.
func (r *release) images(pinsFile string, linked modules, notices []byte) error {
	digest, packages, err := r.bothImages(pinsFile, notices)
	if err != nil {
		return err
	}
	if err := r.writeSBOM(linked, packages, r.name("image.cdx.json")); err != nil {
		return err
	}
	return r.deployments(digest)
}

// imagesAlone is the command images: it writes those files of a release into the directory r.out that a cluster
// needs: both images, the chart and the manifests. The images have no notices of linked modules.
func (r *release) imagesAlone(pinsFile string) error {
	if !versionPattern.MatchString(r.version) || len(r.systems) == 0 || r.out == "" {
		return errors.New("images: want a version, systems, and a directory")
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	digest, _, err := r.bothImages(pinsFile, nil)
	if err != nil {
		return err
	}
	return r.deployments(digest)
}

// bothImages writes both images. It returns the digest of the one that has packages of Debian, and these packages, of
// all architectures. That image exists for fullArchs alone, the other one for all Linux systems.
func (r *release) bothImages(pinsFile string, notices []byte) (digest string, all []debianPackage, err error) {
	p, err := readPins(pinsFile)
	if err != nil {
		return "", nil, err
	}
	full := map[system][]entry{}
	var withPackages []system
	for _, arch := range fullArchs {
		s := system{"linux", arch}
		if !slices.Contains(r.systems, s) {
			continue
		}
		packages := p.Packages[arch]
		if len(packages) == 0 {
			return "", nil, fmt.Errorf("%s has no packages for %s: make pins", pinsFile, arch)
		}
		if full[s], err = debianRoot(packages, r.cache); err != nil {
			return "", nil, err
		}
		all, withPackages = append(all, packages...), append(withPackages, s)
	}
	if digest, err = r.writeImage("image.tar", r.version, withPackages, full, notices); err != nil {
		return "", nil, err
	}
	_, err = r.writeImage("image"+minimal+".tar", r.version+minimal, r.linux(), nil, notices)
	return digest, all, err
}

// writeImage writes an image for several systems, as an archive of an OCI layout with one tag. roots are the files of
// its first layer for each system; nil: it has none. It returns the digest of the index of all systems.
func (r *release) writeImage(file, tag string, systems []system, roots map[system][]entry, notices []byte) (digest string, err error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, s := range systems {
		image, err := r.oneImage(s, roots[s], notices)
		if err != nil {
			return "", fmt.Errorf("image for %s: %w", s, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform(s)}})
	}
	hash, err := index.Digest()
	if err != nil {
		return "", err
	}
	return hash.String(), r.writeLayout(r.name(file), namedImage{index, map[string]string{"org.opencontainers.image.ref.name": tag}})
}

// namedImage is an image for one or several systems, and the annotations that name it: with its tag in a release, with
// its whole name for containerd (labImage).
type namedImage struct {
	index       v1.ImageIndex
	annotations map[string]string
}

// writeLayout writes an archive of an OCI layout. Layers that images have in common are stored once.
func (r *release) writeLayout(file string, images ...namedImage) error {
	dir := filepath.Join(r.out, "layout")
	place, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, i := range images {
		if err := place.AppendIndex(i.index, layout.WithAnnotations(i.annotations)); err != nil {
			return err
		}
	}
	entries, err := r.tree(dir, "")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return r.create(file, func(w io.Writer) error { return writeTar(w, entries, r.time) })
}

// platform returns a system in the words of OCI.
func platform(s system) *v1.Platform {
	p := &v1.Platform{OS: s.os, Architecture: s.arch}
	switch s.arch {
	case "arm":
		p.Variant = "v7"
	case "arm64":
		p.Variant = "v8"
	}
	return p
}

// oneImage makes the image of flanneld for a system: a layer with root, and one with our files.
func (r *release) oneImage(s system, root []entry, notices []byte) (v1.Image, error) {
	ours, err := r.read([]from{
		{r.program("flanneld", s), "opt/bin/flanneld", 0o755},
		{r.program("flannel", s), "opt/flannel/cni/flannel", 0o755},
		{"LICENSE", "usr/share/doc/flanneld/LICENSE", 0o644},
	})
	if err != nil {
		return nil, err
	}
	ours = append(ours, entry{name: "usr/share/doc/flanneld/" + thirdParty, mode: 0o644, data: notices})
	return r.assemble(s, [][]entry{root, ours}, v1.Config{
		Entrypoint: []string{"/opt/bin/flanneld"},
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "flanneld",
			"org.opencontainers.image.version":  r.version,
			"org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	})
}

// assemble makes an image of layers, the lowest first, of which empty ones are left out.
func (r *release) assemble(s system, layers [][]entry, run v1.Config) (v1.Image, error) {
	var made []v1.Layer
	for _, entries := range slices.DeleteFunc(layers, func(e []entry) bool { return len(e) == 0 }) {
		layer, err := r.layer(entries)
		if err != nil {
			return nil, err
		}
		made = append(made, layer)
	}
	return r.stack(s, made, run)
}

// layer makes a layer of files.
func (r *release) layer(entries []entry) (v1.Layer, error) {
	var b bytes.Buffer
	if err := writeTar(&b, entries, r.time); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
}

// stack makes an image of layers, the lowest first, which is run as in run.
func (r *release) stack(s system, layers []v1.Layer, run v1.Config) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(image, layers...)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	p := platform(s)
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant, config.Created = p.OS, p.Architecture, p.Variant, v1.Time{Time: r.time}
	config.History = nil // of AppendLayers, without anything that readers need
	config.Config = run
	return mutate.ConfigFile(image, config)
}

// deployments writes the chart and the manifests with the version and the image's digest. In the repository they have
// the tag dev, and a name without a registry.
func (r *release) deployments(digest string) error {
	tag := r.version + "@" + digest
	replace := strings.NewReplacer(
		"image: flanneld:dev", "image: "+r.image+":"+tag,
		"image: flanneld-windows:dev", "image: "+r.image+"-windows:"+r.version,
		"image: flanneld-kube-proxy-windows:dev", "image: "+r.image+"-kube-proxy-windows:"+r.version,
		"repository: flanneld\n  tag: dev\n", "repository: "+r.image+"\n  tag: "+tag+"\n",
		"repository: flanneld-windows\n    tag: dev\n", "repository: "+r.image+"-windows\n    tag: "+r.version+"\n",
		"version: 0.1.0\n", "version: "+strings.TrimPrefix(r.version, "v")+"\n", // of the chart, as it is in the repository
		"appVersion: dev\n", "appVersion: "+r.version+"\n",
	)
	for _, name := range []string{"kube-flannel.yml", "kube-flannel-windows.yml", "kube-proxy-windows.yml"} {
		text, err := os.ReadFile(filepath.Join(r.source, "Documentation", name))
		if err != nil {
			return err
		}
		filled := replace.Replace(string(text))
		if strings.Contains(filled, ":dev") {
			return fmt.Errorf("%s has an image without a version", name)
		}
		if err := r.create(name, func(w io.Writer) error { _, err := io.WriteString(w, filled); return err }); err != nil {
			return err
		}
	}
	chart, err := r.tree(filepath.Join(r.source, "dist", "chart"), "flannel")
	if err != nil {
		return err
	}
	for i, e := range chart {
		chart[i].data = []byte(replace.Replace(string(e.data)))
		if strings.Contains(string(chart[i].data), ": dev\n") {
			return fmt.Errorf("%s of the chart has no version", e.name)
		}
	}
	return r.create("flannel-"+strings.TrimPrefix(r.version, "v")+".tgz", func(w io.Writer) error {
		return compressed(w, func(w io.Writer) error { return writeTar(w, chart, r.time) })
	})
}
