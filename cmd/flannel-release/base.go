package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
)

// base is the image that the images for Windows are built on: the only one that we neither build nor pin by checksums of
// packages. The digest is missing in a Dockerfile whose base was never asked for.
var (
	base         = regexp.MustCompile(`(?m)^(ARG HOST_PROCESS=([^/\s]+)/([^:@\s]+):([^@\s]+))(@sha256:[0-9a-f]{64})?$`)
	digestFormat = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// renewBase asks the registry of the base image, which needs no login, for the digest of its tag, and writes it into the
// Dockerfile.
func renewBase(ctx context.Context, client *http.Client, dockerfile string) error {
	text, err := os.ReadFile(dockerfile)
	if err != nil {
		return err
	}
	m := base.FindSubmatch(text)
	if m == nil {
		return fmt.Errorf("%s has no line ARG HOST_PROCESS=<registry>/<name>:<tag>", dockerfile)
	}
	digest, err := imageDigest(ctx, client, fmt.Sprintf("https://%s/v2/%s/manifests/%s", m[2], m[3], m[4]))
	if err != nil {
		return fmt.Errorf("base image of %s: %w", dockerfile, err)
	}
	return os.WriteFile(dockerfile, base.ReplaceAll(text, []byte("${1}@"+digest)), 0o644)
}

// imageDigest returns the digest of a manifest, or of an index of manifests, which a registry names in a header.
func imageDigest(ctx context.Context, client *http.Client, address string) (digest string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, address, nil)
	if err != nil {
		return "", err
	}
	for _, kind := range []string{"vnd.oci.image.index.v1", "vnd.oci.image.manifest.v1", "vnd.docker.distribution.manifest.list.v2", "vnd.docker.distribution.manifest.v2"} {
		request.Header.Add("Accept", "application/"+kind+"+json")
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	digest = response.Header.Get("Docker-Content-Digest")
	if response.StatusCode != http.StatusOK || !digestFormat.MatchString(digest) {
		return "", fmt.Errorf("%s: %s, digest %q", address, response.Status, digest)
	}
	return digest, nil
}
