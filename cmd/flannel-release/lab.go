package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// labImages writes the images that `flannel-lab cluster` loads into the directory r.out, for the only system of r: both
// images of flanneld with the tags that the manifest and the chart have, and that of the lab's pods, whose program is
// there. Their annotations have the whole name, so that `ctr images import` needs no option.
func (r *release) labImages(ctx context.Context, pinsFile string) error {
	if len(r.systems) != 1 || r.out == "" {
		return errors.New("lab: want one system, and a directory")
	}
	s := r.systems[0]
	root, err := r.pinnedRoot(ctx, pinsFile, s)
	if err != nil {
		return err
	}
	for tag, below := range map[string][]entry{"dev": root, "dev" + minimal: nil} {
		image, err := r.oneImage(s, below, nil)
		if err != nil {
			return err
		}
		if err := r.writeLab("flanneld"+tag[len("dev"):]+".tar", s, image, "flanneld:"+tag); err != nil {
			return err
		}
	}
	program, err := fileEntry("pod", 0o755, filepath.Join(r.out, "pod"))
	if err != nil {
		return err
	}
	image, err := r.assemble(s, [][]entry{{program, {name: "tmp", mode: os.ModeDir | os.ModeSticky | 0o777}}},
		v1.Config{Entrypoint: []string{"/pod"}, Env: []string{"PATH=/"}})
	if err != nil {
		return err
	}
	return r.writeLab("pod.tar", s, image, "flannel-lab-pod:dev")
}

// pinnedRoot returns the files of a list of packages, which it downloads if they are not in the cache.
func (r *release) pinnedRoot(ctx context.Context, pinsFile string, s system) ([]entry, error) {
	p, err := readPins(pinsFile)
	if err != nil {
		return nil, err
	}
	packages := p.Packages[s.arch]
	if !slices.Contains(fullArchs, s.arch) || len(packages) == 0 {
		return nil, fmt.Errorf("%s has no packages for %s", pinsFile, s.arch)
	}
	if err := p.fetchAll(ctx, packages, r.cache); err != nil {
		return nil, err
	}
	return debianRoot(packages, r.cache)
}

func (r *release) writeLab(file string, s system, image v1.Image, name string) error {
	return r.writeLayout(file, labImage(s, image, "docker.io/library/"+name))
}

// labImage names an image for `ctr images import`, which then needs no option.
func labImage(s system, image v1.Image, name string) namedImage {
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform(s)}})
	return namedImage{index, map[string]string{"io.containerd.image.name": name}}
}
