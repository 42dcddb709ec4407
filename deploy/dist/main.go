// Command dist builds the files of a release: archives with checksums, a bill of materials for each archive, Debian
// packages, and container images as files.
//
//	dist -version 1.2.3 -out ../../bin/dist
//
// Run it in the directory deploy/dist. By default it reads the sources from ../.. and writes to ../../bin/dist. It
// empties the output directory first.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// platform is an operating system and an architecture. Their names are those of GOOS and GOARCH.
type platform struct{ os, arch string }

func platforms() []platform {
	return []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "arm64"}}
}

// release describes the release to build.
type release struct {
	version string // without a leading v
	certs   string // file with the certificates that images trust
	root    string // root directory of the sources
	out     string // directory of the results
	time    time.Time
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("dist", flag.ContinueOnError)
	version := flags.String("version", "", "version of the release, for example 1.2.3")
	root := flags.String("root", "../..", "directory of the sources")
	out := flags.String("out", "../../bin/dist", "directory of the results, which is emptied first")
	certs := flags.String("certs", "/etc/ssl/certs/ca-certificates.crt", "certificates that the images trust")
	only := flags.String("only", "", "build only one platform, for example linux/amd64")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *version == "" {
		return errors.New("no version: give -version 1.2.3")
	}
	r := release{version: strings.TrimPrefix(*version, "v"), certs: *certs, root: *root, out: *out,
		time: commitTime(ctx, *root)}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil { //nolint:gosec // others may read a release
		return err
	}
	for _, p := range platforms() {
		if *only != "" && *only != p.os+"/"+p.arch {
			continue
		}
		if err := r.build(ctx, p); err != nil {
			return fmt.Errorf("%s/%s: %w", p.os, p.arch, err)
		}
	}
	return r.checksums()
}

// commitTime returns the time of the last commit. If git fails, commitTime returns the current time. All files in a
// release get this time, so that two builds of the same commit are identical.
func commitTime(ctx context.Context, root string) time.Time {
	text, err := exec.CommandContext(ctx, "git", "-C", root, "log", "-1", "--format=%cI").Output()
	if err != nil {
		return time.Now().UTC()
	}
	t, err := time.Parse(time.RFC3339, strings.TrimSpace(string(text)))
	if err != nil {
		return time.Now().UTC()
	}
	return t.UTC()
}

// build builds the files of one platform.
func (r release) build(ctx context.Context, p platform) error {
	dir, err := os.MkdirTemp("", "quorate-dist")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "quorate")
	if err := r.compile(ctx, p, binary); err != nil {
		return err
	}
	name := r.name(p)
	bom := filepath.Join(r.out, name+".cdx.json")
	if err := r.writeBOM(p, binary, bom); err != nil {
		return err
	}
	if err := r.archive(name, binary, bom); err != nil {
		return err
	}
	if p.os != "linux" {
		return nil
	}
	if err := r.image(p, binary); err != nil {
		return err
	}
	return r.debian(p, binary)
}

// name returns the base name of the files of a platform.
func (r release) name(p platform) string {
	return strings.Join([]string{"quorate", r.version, p.os, p.arch}, "_")
}

// compile builds the program for the platform p in the same way as the command make build, and writes it to out.
func (r release) compile(ctx context.Context, p platform, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags",
		"-s -w -funcalign=16 -X main.version="+r.version, "-o", out, "./cmd/quorate")
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// checksums writes SHA256SUMS over all files, in the form that sha256sum -c reads.
func (r release) checksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		fmt.Fprintf(&b, "%s  %s\n", hex.EncodeToString(sum[:]), e.Name())
	}
	fmt.Print(b.String())
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(b.String()), 0o644) //nolint:gosec // others read it
}

// read returns the content of a source file. The elements are the parts of its path, relative to r.root.
func (r release) read(elements ...string) ([]byte, error) {
	return os.ReadFile(filepath.Join(slices.Concat([]string{r.root}, elements)...))
}
