package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// The statement of in-toto (https://in-toto.io/Statement/v1) with the predicate of SLSA
// (https://slsa.dev/spec/v1.1/provenance), in the fields that we fill.
type (
	statement struct {
		Type          string    `json:"_type"`
		Subject       []subject `json:"subject"`
		PredicateType string    `json:"predicateType"`
		Predicate     predicate `json:"predicate"`
	}
	subject struct {
		Name   string            `json:"name"`
		Digest map[string]string `json:"digest"`
	}
	predicate struct {
		BuildDefinition buildDefinition `json:"buildDefinition"`
		RunDetails      runDetails      `json:"runDetails"`
	}
	buildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"`
		ResolvedDependencies []subject         `json:"resolvedDependencies"`
	}
	runDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	}
)

// sums returns the names of the files that the steps before have written, in order, and their SHA-256 sums. There are no
// others: release.make begins with an empty r.out. A directory there is an error.
func (r *release) sums() ([]subject, error) {
	files, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	all := make([]subject, 0, len(files))
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(r.out, f.Name()))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		all = append(all, subject{f.Name(), map[string]string{"sha256": hex.EncodeToString(sum[:])}})
	}
	return all, nil
}

// provenance is a step (see release.steps): it writes what the files of the steps before were made from. Whoever publishes
// the release sets the builder's ID in a copy of the statement, and signs the copy as the payload of a DSSE envelope
// (Documentation/releasing.md). The file itself stays as it is, so that SHA256SUMS still fits it.
func (r *release) provenance() error {
	files, err := r.sums()
	if err != nil {
		return err
	}
	s := statement{Type: "https://in-toto.io/Statement/v1", Subject: files, PredicateType: "https://slsa.dev/provenance/v1"}
	s.Predicate.BuildDefinition = buildDefinition{
		BuildType:            "make release", // SLSA wants a URI here and in Builder.ID, and the project has no address for one
		ExternalParameters:   map[string]string{"VERSION": r.version, "IMAGE": r.image},
		InternalParameters:   map[string]string{"go": runtime.Version()}, // r.modules has compared it with that of the programs
		ResolvedDependencies: []subject{{"flanneld", map[string]string{"gitCommit": r.commit}}},
	}
	s.Predicate.RunDetails.Builder.ID = "unsigned: set by whoever signs"
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return r.create(r.name("provenance.intoto.json"), func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

// checksums is the last step: it writes SHA256SUMS, with all files of the steps before, which sha256sum -c checks. By
// convention, the name has no version.
func (r *release) checksums() error {
	files, err := r.sums()
	if err != nil {
		return err
	}
	return r.create("SHA256SUMS", func(w io.Writer) error {
		for _, f := range files {
			if _, err := fmt.Fprintf(w, "%s  %s\n", f.Digest["sha256"], f.Name); err != nil {
				return err
			}
		}
		return nil
	})
}
