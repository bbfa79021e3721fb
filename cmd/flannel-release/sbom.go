package main

import (
	"fmt"
	"io"
	"slices"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes a software bill of materials in CycloneDX's JSON into the file name of the release: our programs'
// modules, and an image's packages; nil: it is not of an image.
func (r *release) writeSBOM(linked modules, packages []debianPackage, name string) error {
	ours := cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: "flanneld", Name: "flanneld", Version: r.version,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}}
	dependencies := []string{}
	components := []cdx.Component{}
	add := func(c cdx.Component) {
		c.BOMRef = c.PackageURL
		components, dependencies = append(components, c), append(dependencies, c.BOMRef)
	}
	for _, m := range linked {
		licences := cdx.Licenses{}
		for _, l := range m.licences {
			licences = append(licences, cdx.LicenseChoice{License: &cdx.License{ID: l}})
		}
		add(cdx.Component{Type: cdx.ComponentTypeLibrary, Name: m.path, Version: m.version, Licenses: &licences,
			PackageURL: fmt.Sprintf("pkg:golang/%s@%s", m.path, m.version)})
	}
	for _, p := range packages {
		add(cdx.Component{Type: cdx.ComponentTypeLibrary, Name: p.Name, Version: p.Version,
			Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: p.SHA256}},
			PackageURL: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", p.Name, p.Version, p.Architecture)})
	}
	slices.Sort(dependencies)
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: r.time.Format("2006-01-02T15:04:05Z"), Component: &ours}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: ours.BOMRef, Dependencies: &dependencies}}
	return r.create(name, func(w io.Writer) error {
		return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	})
}
