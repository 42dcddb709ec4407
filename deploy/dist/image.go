package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageUser is the id of the user and the group that run the program in the image. This user owns the folders that the
// program may write to.
const imageUser = 65532

// image writes the container image of a platform to a file. The file can be imported with docker load, podman load and
// ctr images import. The image has the same files and settings as one from deploy/container/Dockerfile.prebuilt.
func (r release) image(p platform, binary string) error {
	files, err := r.layer(binary)
	if err != nil {
		return err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.DockerLayer))
	if err != nil {
		return err
	}
	img, err := mutate.Append(empty.Image, mutate.Addendum{Layer: layer,
		History: v1.History{CreatedBy: "quorate " + r.version, Created: v1.Time{Time: r.time}}})
	if err != nil {
		return err
	}
	img, err = mutate.ConfigFile(img, r.imageConfig(p, img))
	if err != nil {
		return err
	}
	tag, err := name.NewTag("quorate:" + strings.ReplaceAll(r.version, "+", "_")) // tags have no +
	if err != nil {
		return err
	}
	return tarball.WriteToFile(filepath.Join(r.out, r.name(p)+".image.tar"), tag, img)
}

// imageConfig returns the settings of the image.
func (r release) imageConfig(p platform, img v1.Image) *v1.ConfigFile {
	c, err := img.ConfigFile()
	if err != nil {
		c = &v1.ConfigFile{}
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = p.os, p.arch, v1.Time{Time: r.time}
	port := struct{}{}
	c.Config = v1.Config{
		Env:  []string{"QUORATE_DATA_DIR=/var/lib/quorate/data", "QUORATE_LOG_AS_JSON=true", "PATH=/"},
		User: fmt.Sprintf("%d:%d", imageUser, imageUser), Volumes: map[string]struct{}{"/var/lib/quorate": {}},
		ExposedPorts: map[string]struct{}{"3500": port, "7946": port, "7946/udp": port, "7947": port, "9090": port},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/quorate", "health"}, Interval: 5 * time.Second,
			Timeout: 4 * time.Second, StartPeriod: time.Minute, Retries: 3},
		StopSignal: "SIGTERM", Entrypoint: []string{"/quorate"}, Cmd: []string{"run"},
		Labels: map[string]string{"org.opencontainers.image.version": r.version,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/quorate/quorate"},
	}
	return c
}

// layer returns the files of the image as a tar archive.
func (r release) layer(binary string) ([]byte, error) {
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for _, dir := range []struct {
		name string
		mode int64
		user int
	}{
		{"etc/", 0o755, 0}, {"etc/ssl/", 0o755, 0}, {"etc/ssl/certs/", 0o755, 0}, {"etc/quorate/", 0o755, imageUser},
		{"tmp/", 0o755, imageUser}, {"var/", 0o755, 0}, {"var/lib/", 0o755, 0}, {"var/lib/quorate/", 0o755, imageUser},
	} {
		h := tar.Header{Typeflag: tar.TypeDir, Name: dir.name, Mode: dir.mode, Uid: dir.user, Gid: dir.user,
			ModTime: r.time, Format: tar.FormatPAX}
		if err := out.WriteHeader(&h); err != nil {
			return nil, err
		}
	}
	err := r.add(out, entry{r.certs, "", 0o644}, "etc/ssl/certs/ca-certificates.crt")
	if errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "dist: no %s: the images will trust no public certificate\n", r.certs)
		err = nil
	}
	if err := errors.Join(err, r.add(out, entry{binary, "", 0o755}, "quorate"), out.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
