package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"golang.org/x/mod/semver"
)

// debian writes the Debian package of a platform.
func (r release) debian(p platform, binary string) error {
	dir, err := os.MkdirTemp("", "quorate-deb")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := r.debianFiles(dir); err != nil {
		return err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "quorate", Arch: p.arch, Platform: "linux", Version: r.debianVersion(), VersionSchema: "none",
		Section: "database", Priority: "optional", License: "Apache-2.0", Maintainer: "The Quorate authors",
		Homepage: "https://github.com/quorate/quorate", MTime: r.time,
		Description: "Dapr-compatible sidecar with a built-in, Raft-replicated state store",
	})
	config := func(from, to string) *files.Content {
		return &files.Content{Source: filepath.Join(r.root, from), Destination: to, Type: files.TypeConfigNoReplace,
			FileInfo: &files.ContentFileInfo{Mode: 0o644}}
	}
	file := func(from, to string, mode os.FileMode) *files.Content {
		return &files.Content{Source: from, Destination: to, FileInfo: &files.ContentFileInfo{Mode: mode}}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	info.Overridables = nfpm.Overridables{
		Depends: []string{"adduser"},
		Contents: files.Contents{
			file(binary, "/usr/bin/quorate", 0o755),
			file(at("quorate.service"), "/usr/lib/systemd/system/quorate.service", 0o644),
			file(at("quorate.bash"), "/usr/share/bash-completion/completions/quorate", 0o644),
			file(at("quorate.zsh"), "/usr/share/zsh/vendor-completions/_quorate", 0o644),
			file(at("quorate.fish"), "/usr/share/fish/vendor_completions.d/quorate.fish", 0o644),
			file(filepath.Join(r.root, "LICENSE"), "/usr/share/doc/quorate/copyright", 0o644),
			config("deploy/systemd/quorate.yaml", "/etc/quorate/quorate.yaml"),
			config("deploy/components/statestore.yaml", "/etc/quorate/components/statestore.yaml"),
		},
		Scripts: nfpm.Scripts{PostInstall: filepath.Join(r.root, "deploy/dist/debian/postinst"),
			PreRemove:  filepath.Join(r.root, "deploy/dist/debian/prerm"),
			PostRemove: filepath.Join(r.root, "deploy/dist/debian/postrm")},
		Deb: nfpm.Deb{Compression: "gzip"},
	}
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(r.out, deb.Default.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	return errors.Join(deb.Default.Package(info, f), f.Close())
}

// debianVersion returns the version in dpkg's format. A pre-release gets a "~", for example 0.9.0~dev, so that dpkg
// sorts it before 0.9.0. If the version is not a semantic version, dpkg sorts the result before all semantic versions.
func (r release) debianVersion() string {
	v := "0~" + r.version
	if semver.IsValid("v" + r.version) {
		v = strings.Replace(r.version, "-", "~", 1)
	}
	return strings.Map(func(c rune) rune {
		if c == '-' || c == '_' || c == '/' {
			return '.'
		}
		return c
	}, v)
}

// debianFiles writes the files that only the Debian package has: the systemd unit with adapted paths, and the shell
// completions.
func (r release) debianFiles(dir string) error {
	unit, err := r.read("deploy", "systemd", "quorate.service")
	if err != nil {
		return err
	}
	unit = bytes.ReplaceAll(unit, []byte("/usr/local/bin/quorate"), []byte("/usr/bin/quorate"))
	if err := os.WriteFile(filepath.Join(dir, "quorate.service"), unit, 0o600); err != nil {
		return err
	}
	host := filepath.Join(dir, "quorate") // runs on this platform, not on that of the package
	if err := r.compile(context.Background(), platform{runtime.GOOS, runtime.GOARCH}, host); err != nil {
		return err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text, err := exec.Command(host, "completion", shell).Output()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "quorate."+shell), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
