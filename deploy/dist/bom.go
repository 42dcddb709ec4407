package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeBOM writes the bill of materials of a program in CycloneDX format. The bill lists the modules that are linked
// into the program, with their versions and checksums.
func (r release) writeBOM(p platform, binary, path string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	bom, err := r.bom(p, info)
	if err == nil {
		err = cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	}
	return errors.Join(err, f.Close())
}

func (r release) bom(p platform, info *debug.BuildInfo) (*cdx.BOM, error) {
	main := component(cdx.ComponentTypeApplication, info.Main.Path, r.version)
	main.Name = "quorate"
	main.Properties = &[]cdx.Property{{Name: "go:version", Value: info.GoVersion},
		{Name: "go:os", Value: p.os}, {Name: "go:arch", Value: p.arch}}
	components := []cdx.Component{component(cdx.ComponentTypeLibrary, "std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		c := component(cdx.ComponentTypeLibrary, d.Path, d.Version)
		sum, err := moduleSum(d.Sum)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.Path, err)
		}
		// The sum of a module is a SHA-256 over the hashes of its files, not over one file.
		c.Properties = &[]cdx.Property{{Name: "go:h1", Value: sum}}
		components = append(components, c)
	}
	var refs []string
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: r.time.Format(time.RFC3339), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	return bom, nil
}

func component(kind cdx.ComponentType, path, version string) cdx.Component {
	url := "pkg:golang/" + path + "@" + version
	return cdx.Component{BOMRef: url, Type: kind, Name: path, Version: version, PackageURL: url}
}

// moduleSum converts the sum of a module, such as h1:..., from base64 to hexadecimal.
func moduleSum(text string) (string, error) {
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "h1:"))
	if err != nil || len(sum) != 32 {
		return "", fmt.Errorf("%q is no sum of a module", text)
	}
	return hex.EncodeToString(sum), nil
}
