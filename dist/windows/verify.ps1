<#
.SYNOPSIS
Runs one phase of Documentation/windows-verify.md and keeps what flanneld.exe and HNS answer, to be sent with a report.

.DESCRIPTION
Each phase ends with a bundle of flanneld doctor, without secrets, with the answers of HNS as they are. The phase prepare
takes the host's address away for half a minute, and so do settle, twice, and cleanup; the others change nothing. Run it on a server that
has nothing else to do.
#>
[CmdletBinding()]
param(
    [ValidateSet('look', 'prepare', 'again', 'reboot', 'node', 'settle', 'cleanup')]
    [Parameter(Mandatory)][string]$Phase,
    # overlay or l2bridge
    [string]$NetworkMode = 'overlay',
    # Name or address of the adapter for the pod network. Default: that of the default route.
    [string]$InterfaceName = '',
    [string]$BaseDir = 'C:\k',
    [string]$OutDir = 'C:\flannel-verify'
)

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Import-Module (Join-Path $PSScriptRoot 'flannel.psm1') -Force
Assert-Administrator
$flanneld = Join-Path (Get-FullPath $BaseDir) 'flanneld.exe'
Assert-File $flanneld 'Unpack flannel-windows-amd64.zip there.'
$OutDir = Get-FullPath $OutDir
$bundle = Join-Path $OutDir "$Phase.tar.gz"
if (Test-Path -LiteralPath $bundle) { throw "$bundle exists: this phase has run. Choose another -OutDir to run it again." }
$null = New-Item -ItemType Directory -Force -Path $OutDir
$null = Start-Transcript -LiteralPath (Join-Path $OutDir "$Phase.txt") -Force

$null = Invoke-Flanneld $flanneld @('version')
if ($Phase -eq 'prepare' -or $Phase -eq 'again' -or $Phase -eq 'reboot') {
    $arguments = @('prepare', '--json', "--network-mode=$NetworkMode")
    if ($InterfaceName) { $arguments = @("--iface=$InterfaceName") + $arguments }
    $null = Invoke-Flanneld $flanneld $arguments
} elseif ($Phase -eq 'node') {
    $null = Invoke-Flanneld $flanneld @('status', '--json')
    $null = Invoke-Flanneld $flanneld @('source-vip', '--json')
    $null = Invoke-Flanneld $flanneld @('cni-dirs', '--json')
} elseif ($Phase -eq 'settle') {
    # Another process does not wait for HNS to settle, so this one asks for a network at once.
    $null = Invoke-Flanneld $flanneld @('cleanup')
    $null = Invoke-Flanneld $flanneld @('prepare', '--json', "--network-mode=$NetworkMode")
} elseif ($Phase -eq 'cleanup') {
    $null = Invoke-Flanneld $flanneld @('cleanup')
}
# A failed command above is an answer, too: the doctor looks at what it left.
$null = Invoke-Flanneld $flanneld @('--kube-subnet-mgr', 'doctor', "--bundle=$bundle")
$null = Stop-Transcript
if (-not (Test-Path -LiteralPath $bundle)) { throw "flanneld doctor wrote no bundle; the reason is above." }
Write-Step "wrote $bundle and $Phase.txt"
