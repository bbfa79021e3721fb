<#
.SYNOPSIS
Makes this machine a Windows node of a Kubernetes cluster: flanneld, kubelet and kube-proxy.

.DESCRIPTION
The parameters are those of the scripts of Microsoft and SIG Windows. It can be run again: it skips what is done
already, and says what stops it. It downloads nothing: Documentation/windows-quickstart.md says which files BaseDir must
have, and how to check them.

NetworkMode and ClusterCIDR are used only if NetConf does not exist yet; otherwise that file describes the network.

Without -ManagementIP it uses the parameters of the last run.

.EXAMPLE
.\start.ps1 -ManagementIP 192.168.1.10 -NetworkMode overlay -InterfaceName "Ethernet 2"
#>
[CmdletBinding()]
param(
    [string]$ManagementIP,
    [ValidateSet('l2bridge', 'overlay')] [string]$NetworkMode = 'l2bridge',
    [string]$ClusterCIDR = '10.244.0.0/16',
    [string]$ServiceCIDR = '10.96.0.0/12',
    [string]$KubeDnsServiceIP = '10.96.0.10',
    [string]$InterfaceName = 'Ethernet',
    [string]$LogDir = 'C:\k',
    [string]$KubeletFeatureGates = '',
    [string]$KubeProxyFeatureGates = '',
    [string]$BaseDir = 'C:\k',
    [string]$KubeConfig = "$BaseDir\config",
    [string]$NodeName = $env:COMPUTERNAME.ToLower(),
    [string]$NetConf = 'C:\etc\kube-flannel\net-conf.json',
    # Default: where containerd looks (flanneld cni-dirs).
    [string]$CniBinDir = '',
    [string]$CniConfDir = '',
    [string]$KubeletConfig = 'C:\var\lib\kubelet\config.yaml',
    # If kubelet's configuration is missing, one is written that accepts clients with a certificate of this CA: the API
    # server.
    [string]$ClientCA = 'C:\etc\kubernetes\pki\ca.crt',
    [string]$ContainerRuntimeEndpoint = 'npipe:////./pipe/containerd-containerd',
    [int]$HealthPort = 8471,
    [int]$TimeoutMinutes = 15,
    # Overwrite a CNI configuration that somebody edited.
    [switch]$Force
)

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Import-Module (Join-Path $PSScriptRoot 'flannel.psm1') -Force
Assert-Administrator

# Use the parameters of the last run, or these, and save them.
$BaseDir = Get-FullPath $BaseDir
$settingsFile = Join-Path $BaseDir 'flannel-node.json'
$kept = 'ManagementIP', 'NetworkMode', 'ClusterCIDR', 'ServiceCIDR', 'KubeDnsServiceIP', 'InterfaceName', 'LogDir', 'KubeletFeatureGates',
    'KubeProxyFeatureGates', 'KubeConfig', 'NodeName', 'NetConf', 'CniBinDir', 'CniConfDir', 'KubeletConfig', 'ClientCA', 'ContainerRuntimeEndpoint', 'HealthPort'
$last = Read-Settings $settingsFile
if (-not $ManagementIP) {
    foreach ($name in $kept) {
        if ($last.ContainsKey($name) -and -not $PSBoundParameters.ContainsKey($name)) { Set-Variable -Name $name -Value $last[$name] }
    }
}
if (-not $ManagementIP) { throw '-ManagementIP is missing: the address at which other nodes reach this node.' }
foreach ($name in 'LogDir', 'KubeConfig', 'NetConf', 'KubeletConfig', 'ClientCA') {
    Set-Variable -Name $name -Value (Get-FullPath (Get-Variable -Name $name -ValueOnly))
}
if ($CniBinDir) { $CniBinDir = Get-FullPath $CniBinDir }
if ($CniConfDir) { $CniConfDir = Get-FullPath $CniConfDir }
$services = [bool]($last.ContainsKey('Services') -and $last['Services'])
$settings = @{ Services = $services }
foreach ($name in $kept) { $settings[$name] = Get-Variable -Name $name -ValueOnly }
$null = Write-Text $settingsFile ($settings | ConvertTo-Json)

$flanneld = Join-Path $BaseDir 'flanneld.exe'
$kubelet = Join-Path $BaseDir 'kubelet.exe'
$kubeProxy = Join-Path $BaseDir 'kube-proxy.exe'
# The address comes first; the name is for the time in which the adapter has no address.
$node = @("--iface=$ManagementIP", "--iface=$InterfaceName")
$kube = @('--kube-subnet-mgr', "--kubeconfig-file=$KubeConfig", "--net-config-path=$NetConf")
$health = @('--healthz-ip=127.0.0.1', "--healthz-port=$HealthPort")
$env:NODE_NAME = $NodeName

try {
    Write-Step '1/8 directories and files'
    foreach ($file in $flanneld, $kubeProxy, $KubeConfig) {
        Assert-File $file 'See Documentation/windows-quickstart.md for the files that are needed.'
    }
    if (-not $CniBinDir -or -not $CniConfDir) {
        $dirs = Get-CniDirectories $flanneld
        if (-not $CniBinDir) { $CniBinDir = $dirs.binDir }
        if (-not $CniConfDir) { $CniConfDir = $dirs.confDir }
    }
    foreach ($dir in $LogDir, $CniBinDir, $CniConfDir) { $null = New-Item -ItemType Directory -Force -Path $dir }
    if (Test-Path -LiteralPath (Join-Path $BaseDir 'cni')) {
        Assert-Flanneld $flanneld @('install-cni', "--plugin-from=$BaseDir\cni", "--plugin-to=$CniBinDir")
    }
    Assert-Flanneld $flanneld ($kube + @('net-conf', "--network-mode=$NetworkMode", "--cluster-cidr=$ClusterCIDR"))

    Write-Step '2/8 the adapter''s virtual switch: the network may be down for half a minute, and remote sessions may end'
    if (Test-Component $BaseDir 'flanneld') {
        Write-Step 'skipped, because flanneld runs already and does it itself'
    } else {
        Assert-Flanneld $flanneld ($kube + $node + @('prepare', "--timeout=${TimeoutMinutes}m"))
    }

    Write-Step '3/8 CNI configuration'
    $edited = '--keep'
    if ($Force) { $edited = '--force' }
    Assert-Flanneld $flanneld ($kube + @('cni-conf', "--to=$CniConfDir\10-flannel.conf", "--plugin-dir=$CniBinDir", "--service-cidr=$ServiceCIDR",
            "--dns=$KubeDnsServiceIP", '--dns-search=svc.cluster.local', "--management-ip=$ManagementIP", $edited))

    Write-Step '4/8 kubelet, which registers the node'
    if (-not (Get-Service -Name kubelet -ErrorAction SilentlyContinue)) { Assert-File $kubelet 'There is no service kubelet either.' }
    if (-not (Test-Path -LiteralPath $KubeletConfig)) {
        $KubeletConfig = Join-Path $BaseDir 'kubelet.json'
        $authentication = @{}
        if (Test-Path -LiteralPath $ClientCA) { $authentication = @{ x509 = @{ clientCAFile = $ClientCA } } }
        $changed = Write-Text $KubeletConfig ([ordered]@{ # without [ordered], PowerShell 7 writes the keys in random order
                apiVersion = 'kubelet.config.k8s.io/v1beta1'; kind = 'KubeletConfiguration'
                clusterDNS = @($KubeDnsServiceIP); clusterDomain = 'cluster.local'; resolvConf = ''
                cgroupsPerQOS = $false; enforceNodeAllocatable = @('none'); containerRuntimeEndpoint = $ContainerRuntimeEndpoint
                authentication = $authentication
            } | ConvertTo-Json -Depth 4)
        if ($changed) { Stop-Component $BaseDir 'kubelet' } # a running kubelet has read the former file
    }
    $arguments = @("--config=$KubeletConfig", "--kubeconfig=$KubeConfig", "--hostname-override=$NodeName", "--node-ip=$ManagementIP", '--v=2')
    if ($KubeletFeatureGates) { $arguments += "--feature-gates=$KubeletFeatureGates" }
    Start-Component $BaseDir 'kubelet' $kubelet $arguments $LogDir $services

    Write-Step '5/8 flanneld'
    if ($services) {
        Assert-Flanneld $flanneld (@('service', 'install', '--start', '--env', "NODE_NAME=$NodeName", '--') + $kube + $node + $health +
            @('--ip-masq', "--log-file=$LogDir\flanneld.log"))
    } else {
        Start-Component $BaseDir 'flanneld' $flanneld ($kube + $node + $health + @('--ip-masq')) $LogDir $false
    }
    Assert-Flanneld $flanneld ($health + @('wait', "--timeout=${TimeoutMinutes}m", '--silence=1m'))

    Write-Step '6/8 kube-proxy''s source VIP and other flags'
    $arguments = Get-KubeProxyArguments $flanneld (Read-Program $kubeProxy @('--version')) $NodeName $KubeConfig $KubeProxyFeatureGates
    Write-Step (Join-Arguments $arguments)

    Write-Step '7/8 kube-proxy'
    # Manual start, because the VIP may have changed when the system starts.
    Start-Component $BaseDir 'kube-proxy' $kubeProxy $arguments $LogDir $services 'Manual'

    Write-Step '8/8 status'
    $null = Invoke-Flanneld $flanneld @('status')
    Write-Step "$NodeName is a node of the pod network"
} catch {
    if (Test-Path -LiteralPath $flanneld) {
        Write-Step 'failed; results of flanneld doctor:'
        # Empty directories are those of containerd.
        $null = Invoke-Flanneld $flanneld ($kube + @('doctor', '-v', "--cni-conf-dir=$CniConfDir", "--cni-bin-dir=$CniBinDir"))
    }
    throw
}
